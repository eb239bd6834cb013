package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"berth/services"
	"berth/services/proxy/ruleset"
)

// open opens a connection and reads which server has it.
func (n *host) open(to string) (c *client, server string) {
	n.t.Helper()
	c, err := n.dial("tcp", "", to, answerTimeout)
	n.must(err)
	if !c.Scan() {
		n.t.Fatalf("%s: connection to %s: %v", n.name, to, c.Err())
	}
	return c, c.Text()
}

// alive checks that a connection still answers.
func (c *client) alive(t *testing.T, when string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(answerTimeout))
	if _, err := fmt.Fprintln(c, when); err != nil {
		t.Fatalf("%s: connection broken: %v", when, err)
	}
	if !c.Scan() || c.Text() != when {
		t.Fatalf("%s: connection broken: got %q, %v", when, c.Text(), c.Err())
	}
}

// differences compares the kernel with the rules that the store asks for.
func (w *world) differences() int {
	w.t.Helper()
	k, err := openKernel(w.node.ns)
	w.node.must(err)
	defer k.close()
	tables, err := k.load()
	w.node.must(err)
	if tables != tablesIntact {
		return -1
	}
	node := testNode()
	s := ruleset.NewState(&node)
	for _, name := range w.store.Names() {
		svc, all := w.store.Service(name)
		s.Apply([]ruleset.Update{{Name: name, Service: svc, Slices: all}})
	}
	n := k.missingTargets(s)
	for _, f := range families() {
		remove, add, err := k.compare(f, s)
		w.node.must(err)
		n += len(remove) + len(add)
	}
	return n
}

func TestConnectionsSurviveRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	svc := service(func(s *services.Service) { s.Ports[0].NodePort = 30080 })
	w.set(svc, "10.1.0.12", "fd01::12")
	inside, _ := w.pods[0].open("10.43.0.1:80")
	inside6, _ := w.pods[0].open("[fd43::1]:80")
	outside, _ := w.client.open("192.0.2.1:30080")
	all := []*client{inside, inside6, outside}
	check := func(when string) {
		t.Helper()
		for _, c := range all {
			c.alive(t, when)
		}
	}
	check("before")
	w.stop()
	check("stopped")
	if c, server := w.pods[0].open("10.43.0.1:80"); server != "pod2 10.1.0.11" {
		t.Errorf("without the proxy: got %q", server)
	} else {
		all = append(all, c)
	}
	for _, slice := range endpoints("10.1.0.13") { // the old endpoint goes away meanwhile
		w.store.SetSlice(slice)
	}
	w.start()
	check("restarted")
	if _, server := w.pods[0].open("10.43.0.1:80"); server != "pod3 10.1.0.11" {
		t.Errorf("after the restart: got %q", server)
	}
	w.stop()
	k, err := openKernel(w.node.ns) // an upgrade with other rules replaces the tables
	w.node.must(err)
	defer k.close()
	b := newBatch()
	b.flushChain(ipv4(), servicesChain)
	w.node.must(k.socket.commit(b))
	w.start()
	check("tables replaced")
	if _, server := w.pods[0].open("10.43.0.1:80"); server != "pod3 10.1.0.11" {
		t.Errorf("after the replacement: got %q", server)
	}
	w.stop()
	w.node.must(Remove(w.node.ns))
	w.node.must(Remove(w.node.ns)) // nothing is left to remove
	if tables, err := k.load(); err != nil || tables != tablesMissing {
		t.Errorf("after Remove: got %v, %v", tables, err)
	}
}

// TestChildProxy is not a test: it runs a proxy under churn until it is killed.
func TestChildProxy(t *testing.T) {
	if os.Getenv("BERTH_PROXY_CHILD") == "" {
		t.Skip("runs as a child of TestKilled")
	}
	store := services.NewStore()
	store.ReplaceServices(nil)
	store.ReplaceSlices(nil)
	p := New(Options{Store: store, Node: testNode(), Log: logTo(t)})
	go func() {
		for version := 0; ; version++ {
			churn(store, version)
		}
	}()
	_ = p.Run(context.Background())
}

// churn changes a Service of many.
func churn(store *services.Store, version int) {
	u := manyService(version%50, version)
	u.Slices[0].Endpoints = u.Slices[0].Endpoints[:version%6]
	if version%7 == 0 {
		store.DeleteService(u.Name)
		return
	}
	store.SetService(u.Service)
	store.SetSlice(u.Slices[0])
}

// TestKilled kills a proxy during changes. The next one repairs the tables, and connections
// through them live on.
func TestKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.set(service(nil), "10.1.0.12")
	c, _ := w.pods[0].open("10.43.0.1:80")
	for round := range 5 {
		w.stop()
		cmd := exec.Command(os.Args[0], "-test.run=^TestChildProxy$")
		cmd.Env = append(os.Environ(), "BERTH_PROXY_CHILD=1")
		w.node.must(w.node.do(cmd.Start))
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test fails before it kills the child
		w.waitForRules(30 * (round + 1))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		c.alive(t, fmt.Sprint("killed ", round))
		w.start()
		if n := w.differences(); n != 0 {
			t.Fatalf("round %d: %d differences after the restart", round, n)
		}
		if _, server := w.pods[0].open("10.43.0.1:80"); server != "pod2 10.1.0.11" {
			t.Fatalf("round %d: got %q", round, server)
		}
	}
}

// waitForRules waits until the tables have changed a number of times.
func (w *world) waitForRules(changes int) {
	w.t.Helper()
	k, err := openKernel(w.node.ns)
	w.node.must(err)
	defer k.close()
	first, err := k.generation()
	w.node.must(err)
	for deadline := time.Now().Add(3 * time.Minute); ; { // a child starts, and makes each of the changes
		n, err := k.generation()
		w.node.must(err)
		if int(n-first) >= changes {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("only %d changes", n-first)
		}
	}
}

// TestRepair changes the tables behind the proxy.
func TestRepair(t *testing.T) {
	t.Parallel()
	w := &world{lab: newLab(t), store: services.NewStore()}
	w.init()
	w.configure = func(p *Proxy) { p.checkInterval, p.auditInterval = time.Millisecond, time.Millisecond }
	w.start()
	w.serveAll()
	w.set(service(nil), "10.1.0.12", "10.2.0.11", "fd01::12")
	k, err := openKernel(w.node.ns)
	w.node.must(err)
	defer k.close()
	node := testNode()
	s := ruleset.NewState(&node)
	svc, all := w.store.Service(web)
	elements := s.Apply([]ruleset.Update{{Name: web, Service: svc, Slices: all}}).Add
	changes := map[string]func(*batch){
		"table deleted":      func(b *batch) { b.deleteTable(ipv4()) },
		"base chain flushed": func(b *batch) { b.flushChain(ipv6(), postroutingChain) },
		"chain flushed":      func(b *batch) { b.flushChain(ipv4(), "cluster-2") },
		"rule added": func(b *batch) {
			w.node.must(b.rule(ipv4(), rule{servicesChain, exprs(drop()), ""}))
		},
		"elements deleted": func(b *batch) {
			for i := range elements {
				b.element(unix.NFT_MSG_DELSETELEM, &elements[i])
			}
		},
		"element added": func(b *batch) {
			e := ruleset.Element{Set: ruleset.HairpinSet, Key: "\x01\x02\x03\x04\x01\x02\x03\x04"}
			b.element(unix.NFT_MSG_NEWSETELEM, &e)
		},
		"element changed": func(b *batch) {
			for _, e := range elements {
				if e.Set == ruleset.EndpointMap && !e.IPv6 {
					b.element(unix.NFT_MSG_DELSETELEM, &e)
					e.Value = "\x0a\x01\x00\x63\x00\x50\x00\x00"
					b.element(unix.NFT_MSG_NEWSETELEM, &e)
					return
				}
			}
		},
	}
	for name, change := range changes {
		b := newBatch()
		change(b)
		w.node.must(k.socket.commit(b))
		for deadline := time.Now().Add(answerTimeout); w.differences() != 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not repaired", name)
			}
		}
	}
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11|other 10.1.0.11")
}

// TestFlushedChainIsNoticed: a chain of endpoints without rules is repaired at the next check, not at the next audit.
func TestFlushedChainIsNoticed(t *testing.T) {
	t.Parallel()
	w := &world{lab: newLab(t), store: services.NewStore()}
	w.init()
	w.configure = func(p *Proxy) { p.checkInterval = time.Millisecond }
	w.start()
	w.serveAll()
	w.set(service(nil), "10.1.0.12", "10.2.0.11", "fd01::12")
	k, err := openKernel(w.node.ns)
	w.node.must(err)
	defer k.close()
	b := newBatch()
	b.flushChain(ipv4(), "cluster-2")
	w.node.must(k.socket.commit(b))
	if w.proxy.auditInterval < time.Minute {
		t.Fatal("the audit may repair the chain")
	}
	for deadline := time.Now().Add(answerTimeout); w.differences() != 0; {
		if time.Now().After(deadline) {
			t.Fatal("not repaired")
		}
	}
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11|other 10.1.0.11")
}

// TestForeignTables: tables of others are neither changed nor in the way.
func TestForeignTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	foreign, err := openKernel(w.node.ns)
	w.node.must(err)
	defer foreign.close()
	const many = 10_000
	b := newBatch()
	b.foreign("filter-of-others", many)
	w.node.must(foreign.socket.commit(b))
	w.set(service(nil), "10.1.0.12")
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11")
	w.stop()
	w.start()
	w.set(service(nil), "10.1.0.13")
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod3 10.1.0.11")
	w.stop()
	w.node.must(Remove(w.node.ns))
	rules := 0
	w.node.must(foreign.socket.query(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_IPV4, nil,
		func(attr uint16, _ []byte) {
			if attr == unix.NFTA_RULE_CHAIN {
				rules++
			}
		}))
	if rules != many {
		t.Errorf("the foreign table has %d rules, want %d", rules, many)
	}
}

// foreign creates a table with a chain of n rules.
func (b *batch) foreign(table string, n int) {
	b.nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_IPV4)
	b.text(unix.NFTA_TABLE_NAME, table)
	b.nft(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFPROTO_IPV4)
	b.text(unix.NFTA_CHAIN_TABLE, table)
	b.text(unix.NFTA_CHAIN_NAME, "input")
	for range n {
		b.nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFPROTO_IPV4)
		b.text(unix.NFTA_RULE_TABLE, table)
		b.text(unix.NFTA_RULE_CHAIN, "input")
		_ = b.expressions(unix.NFPROTO_IPV4, exprs(&expr.Counter{}))
	}
}

// TestUDPFlows: a socket that keeps sending reaches the endpoints that exist now.
func TestUDPFlows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	svc := service(func(s *services.Service) { s.Ports[1].NodePort = 30053 })
	flows := map[string]*client{}
	for name, at := range map[string]struct {
		from *host
		to   string
	}{
		"ClusterIP": {w.pods[0], "10.43.0.1:53"}, "ClusterIP IPv6": {w.pods[0], "[fd43::1]:53"},
		"NodePort": {w.client, "192.0.2.1:30053"}, "node": {w.node, "10.43.0.1:53"},
	} {
		c, err := at.from.dial("udp", "", at.to, answerTimeout) // before there is a Service
		w.node.must(err)
		flows[name] = c
	}
	reach := func(want string) {
		t.Helper()
		for name, c := range flows {
			for deadline := time.Now().Add(answerTimeout); ; {
				_, _ = c.Write([]byte("hello"))
				_ = c.SetReadDeadline(time.Now().Add(silence))
				b := make([]byte, 100)
				n, err := c.Read(b)
				if err == nil && strings.HasPrefix(string(b[:n]), want) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s does not reach %s", name, want)
				}
			}
		}
	}
	w.set(svc, "10.1.0.12", "fd01::12")
	reach("pod2")
	w.set(svc, "10.1.0.13", "fd01::13")
	reach("pod3")
	w.set(svc)
	w.set(svc, "10.1.0.12", "fd01::12")
	reach("pod2")
	w.stop() // changes while there is no proxy
	for _, slice := range endpoints("10.1.0.13", "fd01::13") {
		w.store.SetSlice(slice)
	}
	w.start()
	reach("pod3")
}

// TestNodeChanges: the addresses of the node, its pods and its zone may change.
func TestNodeChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.node.address("eth0", "192.0.2.2/24")
	svc := service(func(s *services.Service) { s.Ports[0].NodePort = 30080 })
	w.set(svc, "10.1.0.12")
	check(t, w.client, "tcp", "", "192.0.2.2:30080", "refused")
	node := testNode()
	node.NodePortAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	node.PodCIDRs = nil // nothing is known to be a pod: traffic to ClusterIPs is not masqueraded
	w.change(func() { w.proxy.SetNode(node) })
	check(t, w.client, "tcp", "", "192.0.2.2:30080", "pod2 10.1.0.1")
	check(t, w.client, "tcp", "", "192.0.2.1:30080", "refused")
	check(t, w.client, "tcp", "", "10.43.0.1:80", "pod2 192.0.2.100")
}

// TestLargeService: 100,000 endpoints of one Service do not harm another one.
func TestLargeService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serveAll()
	w.set(service(nil), "10.1.0.12")
	name := services.Name{Namespace: "a", Name: "large"}
	large := service(func(s *services.Service) {
		s.Name, s.ClusterIPs, s.Ports = name, []netip.Addr{netip.MustParseAddr("10.43.0.2")}, s.Ports[:1]
	})
	slice := &services.Slice{Service: name, Name: "x", Ports: []services.EndpointPort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}
	for i := range 100_000 {
		slice.Endpoints = append(slice.Endpoints, services.Endpoint{Ready: true, Serving: true,
			Address: netip.AddrFrom4([4]byte{10, 9 + byte(i>>16), byte(i >> 8), byte(i)})})
	}
	w.change(func() { w.store.SetService(large); w.store.SetSlice(slice) })
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod2 10.1.0.11")
	w.set(service(nil), "10.1.0.13")
	check(t, w.pods[0], "tcp", "", "10.43.0.1:80", "pod3 10.1.0.11")
	w.change(func() { w.store.DeleteService(name); w.store.DeleteSlice(slice.Key()) })
	if n := w.differences(); n != 0 {
		t.Errorf("%d differences", n)
	}
}
