package pair

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/control"
	servers "berth/test/control"
	"berth/test/hosts"
	"berth/test/images"
)

const (
	echoPort        = 8080
	heldConnections = 200
	echoTimeout     = 2 * time.Minute // a broken connection ends at once, and a busy machine may take its time
	maxRestartDelay = time.Second     // RestartSec of berth.service
	resolverTimeout = 5 * time.Second // the default of resolvers
)

// killedServices are two pods with an echo server, and Services that lead to them. They stay as they are
// while other Services, pods and policies change and the agent is killed.
//
//	stable   NodePort, IPv4 and IPv6, selects the two pods
//	rolling  ClusterIP, with the two pods and with changing siblings
const killedServices = `apiVersion: v1
kind: Service
metadata: {name: stable}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  selector: {app: stable}
  ports: [{name: echo, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: rolling}
spec: {ports: [{name: echo, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: churn-pods}
spec: {selector: {app: churn}, ports: [{port: 80}]}
`

// serviceKills is a node whose agent is killed under churn.
type serviceKills struct {
	*Pair
	rng     *rand.Rand
	ns      netns.NsHandle    // of the host
	client  string            // file of the network namespace of the client pod
	stable4 []string          // addresses of the stable pods
	timeout time.Duration     // of each of the two attempts of a DNS query
	pause   time.Duration     // between two uses of connections
	udp     map[string]string // addresses of the churn Services that have UDP, by name
	pods    []string          // changing pods that exist
	held    []*heldConnection
	streams sync.WaitGroup
	stop    chan struct{}

	services, slices, createdPods, policies int // changes
	roundTrips, opened, answered, retried   atomic.Int64
	slowest                                 atomic.Int64 // answer to a query, in ns
	broken                                  atomic.Int64
}

// killCount returns the number of kills: BERTH_SERVICE_KILLS, otherwise 300 in a torture run and 5 in others.
func killCount(t *testing.T) int {
	t.Helper()
	normal := "5"
	if os.Getenv("BERTH_TORTURE") != "" {
		normal = "300"
	}
	n, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_SERVICE_KILLS"), os.Getenv("BERTH_KILLS"), normal))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestServicesUnderKills kills the agent again and again while Services, EndpointSlices, pods and policies
// change. No connection through an unchanged endpoint breaks, no new connection fails, no DNS query fails beyond
// one retry, and in the end the kernel has the rules and flows that it had before.
func TestServicesUnderKills(t *testing.T) {
	t.Parallel()
	kills, seed := killCount(t), time.Now().UnixNano()%1_000_000
	if text := os.Getenv("BERTH_SEED"); text != "" {
		seed, _ = strconv.ParseInt(text, 10, 64)
	}
	t.Logf("%d kills, seed %d: set BERTH_SEED=%d to repeat", kills, seed, seed)
	s := &serviceKills{
		Pair: &Pair{t: t}, rng: rand.New(rand.NewPCG(uint64(seed), 17)), udp: map[string]string{},
		stop: make(chan struct{}), timeout: echoTimeout, // a lost query is never answered
		pause: 10 * time.Millisecond, // other tests need the CPU time
	}
	if os.Getenv("BERTH_TORTURE") != "" {
		s.timeout, s.pause = resolverTimeout, 2*time.Millisecond
	}
	s.setUp()
	s.must(s.Agent.Restart(t.Context())) // removes the chains that no Service uses any more
	s.waitForQuery()
	before := s.settledRules()
	s.hold()
	s.startStreams()
	began := time.Now()
	for i := range kills {
		s.round(i)
		if t.Failed() {
			t.Fatalf("after %d kills", i+1)
		}
	}
	took := time.Since(began)
	s.must(s.Agent.WaitReady(t.Context()))
	s.removeChurn()
	s.requireNoFlows("changed endpoints", func(to netip.Addr, _ uint16) bool { return churnRange.Contains(to) })
	s.requireRules("after the churn", before, false)
	s.must(s.Agent.Restart(t.Context()))
	s.waitForQuery()
	s.requireRules("after a restart", before, true)
	close(s.stop)
	s.streams.Wait()
	s.closeHeld()
	s.requireNoFlows("closed connections", func(to netip.Addr, port uint16) bool {
		return port == echoPort && (to.String() == s.stable4[0] || to.String() == s.stable4[1] || to.Is6())
	})
	t.Logf("%d kills in %s: %d connections held with %d round trips, %d new connections, %d broken; "+
		"%d DNS queries answered, %d of them at the second attempt, the slowest after %s; "+
		"changes: %d Services, %d EndpointSlices, %d pods, %d policies", kills, took.Round(time.Second), len(s.held),
		s.roundTrips.Load(), s.opened.Load(), s.broken.Load(), s.answered.Load(), s.retried.Load(),
		time.Duration(s.slowest.Load()).Round(time.Millisecond), s.services, s.slices, s.createdPods, s.policies)
	if s.roundTrips.Load() < int64(len(s.held)) || s.opened.Load() == 0 || s.answered.Load() == 0 {
		t.Error("a stream did nothing")
	}
	s.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}

func (s *serviceKills) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// setUp starts the server, the node, the pods and the Services that do not change.
func (s *serviceKills) setUp() {
	t := s.t
	lan, err := hosts.NewLAN()
	s.must(err)
	t.Cleanup(func() {
		if err := lan.Close(); err != nil {
			t.Error(err)
		}
	})
	s.Server = servers.Start(t, func(c *control.Config) {
		c.Listen = netip.AddrPortFrom(lan.Machine, 0).String()
		c.ClusterCIDRs = podCIDRs
		c.ServiceCIDRs = append(c.ServiceCIDRs, netip.MustParsePrefix("fd43::/112"))
	})
	s.createBootstrapToken()
	s.joinHost(t.TempDir(), pairOptions{
		WithoutCNI: true, LAN: lan, KeepSockets: true, BerthConfig: map[string]any{"cniPodCIDRs": []string{"node"}},
	})
	s.waitForNodeCondition("Ready", "True")
	s.ns, err = netns.GetFromName(s.Host.Name)
	s.must(err)
	t.Cleanup(func() { _ = s.ns.Close() })
	// A flow of the kernel outlasts the test unless the agent removes it, and a closed connection does not.
	s.must(s.Host.RunInNetwork(func() error {
		const dir = "/proc/sys/net/netfilter/nf_conntrack_"
		return errors.Join(os.WriteFile(dir+"udp_timeout", []byte("120"), 0o644),
			os.WriteFile(dir+"tcp_timeout_time_wait", []byte("5"), 0o644))
	}))
	names := []string{"stable-0", "stable-1", "client"}
	for _, name := range names {
		app, _, _ := strings.Cut(name, "-")
		s.create(s.sleepingPod(name, app))
	}
	s.Apply(t, killedServices)
	for _, name := range names {
		s.waitForField("pod", name, readyStatus, "True")
		if file := s.podNetNS(name); name == "client" {
			s.client = file
		} else {
			s.serveEcho(file)
			ips := strings.Fields(s.field("pod", name, ".status.podIPs[*].ip"))
			s.stable4 = append(s.stable4, ips[0])
		}
	}
	s.setSlice("rolling", "rolling-unchanged", corev1.ProtocolTCP, s.stable4)
	s.waitForNewConnection(s.client, s.clusterIP("stable"))
	s.waitForNewConnection(s.client, s.clusterIP("rolling"))
}

func (s *serviceKills) sleepingPod(name, app string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName: s.Node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: images.TestboxRef, Args: []string{"sleep"}}},
		},
	}
}

func (s *serviceKills) create(pod *corev1.Pod) {
	s.t.Helper()
	s.api("create pod "+pod.Name, func() error { // at first, the namespace has no service account
		_, err := s.Client.CoreV1().Pods("default").Create(s.t.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// podNetNS returns the file of the network namespace of a running pod.
func (s *serviceKills) podNetNS(name string) string {
	s.t.Helper()
	ctx := s.t.Context()
	list, err := s.Host.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": name}},
	})
	if err == nil && len(list.Containers) != 1 {
		err = fmt.Errorf("pod %s has %d containers", name, len(list.Containers))
	}
	s.must(err)
	status, err := s.Host.Runtime.ContainerStatus(ctx,
		&runtimeapi.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
	s.must(err)
	var info struct{ PID int }
	s.must(json.Unmarshal([]byte(status.Info["info"]), &info))
	return filepath.Join("/proc", strconv.Itoa(info.PID), "ns/net")
}

// serveEcho answers connections in a network namespace with what they send, until the test ends.
func (s *serviceKills) serveEcho(file string) {
	s.t.Helper()
	var l net.Listener
	s.must(hosts.RunInNetNS(file, func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprint(":", echoPort))
		return err
	}))
	var running sync.WaitGroup
	s.t.Cleanup(func() { _ = l.Close(); running.Wait() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
}

func (s *serviceKills) clusterIP(service string) string {
	return net.JoinHostPort(s.field("service", service, ".spec.clusterIP"), "80")
}

// heldConnection is an open connection to an echo server.
type heldConnection struct {
	net.Conn

	name   string
	reader *bufio.Reader
}

// dial connects from a network namespace; empty: from this machine.
func dial(file, name, to string) (c *heldConnection, err error) {
	open := func() error {
		conn, err := (&net.Dialer{Timeout: echoTimeout}).Dial("tcp", to)
		if err != nil {
			return err
		}
		c = &heldConnection{conn, name, bufio.NewReader(conn)}
		return nil
	}
	if file == "" {
		return c, open()
	}
	err = hosts.RunInNetNS(file, open)
	return c, err
}

// echo sends a line and waits for it.
func (c *heldConnection) echo() error {
	line := "held\n"
	err := c.SetDeadline(time.Now().Add(echoTimeout))
	if err == nil {
		_, err = io.WriteString(c, line)
	}
	if err != nil {
		return err
	}
	got, err := c.reader.ReadString('\n')
	if err == nil && got != line {
		err = fmt.Errorf("got %q", got)
	}
	return err
}

func (s *serviceKills) waitForNewConnection(file, to string) {
	s.t.Helper()
	s.waitUntil("a connection to "+to, func() string {
		c, err := dial(file, "", to)
		if err == nil {
			err = errors.Join(c.echo(), c.Close())
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// hold opens the connections: by node port from another host, and by cluster IP from a pod and from the node.
func (s *serviceKills) hold() {
	s.t.Helper()
	nodePort := net.JoinHostPort(s.Host.Gateway.String(), s.field("service", "stable", ".spec.ports[0].nodePort"))
	ip6 := net.JoinHostPort(s.field("service", "stable", ".spec.clusterIPs[1]"), "80")
	for _, kind := range []struct {
		name, file, to string
		count          int
	}{
		{"node port", "", nodePort, 70},
		{"cluster IP from a pod", s.client, s.clusterIP("stable"), 40},
		{"IPv6 cluster IP from a pod", s.client, ip6, 40},
		{"cluster IP from the node", filepath.Join("/run/netns", s.Host.Name), s.clusterIP("rolling"), 50},
	} {
		s.waitForNewConnection(kind.file, kind.to)
		for range kind.count {
			c, err := dial(kind.file, kind.name, kind.to)
			if err != nil {
				s.t.Fatalf("%s: %v", kind.name, err)
			}
			s.held = append(s.held, c)
			s.t.Cleanup(func() { _ = c.Close() }) // before the servers wait for their connections
		}
	}
	if len(s.held) != heldConnections {
		s.t.Fatalf("%d connections", len(s.held))
	}
}

func (s *serviceKills) closeHeld() {
	for _, c := range s.held {
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}
}

// startStreams uses the connections, opens new ones and sends queries until stop is closed.
func (s *serviceKills) startStreams() {
	s.t.Cleanup(s.streams.Wait)
	s.t.Cleanup(func() {
		select {
		case <-s.stop:
		default:
			close(s.stop)
		}
	})
	repeat := func(every time.Duration, file string, f func()) {
		s.streams.Go(func() {
			err := hosts.RunInNetNS(file, func() error {
				for {
					select {
					case <-s.stop:
						return nil
					case <-time.After(every):
					}
					f()
				}
			})
			if err != nil {
				s.t.Error(err)
			}
		})
	}
	next, stable := 0, s.clusterIP("stable")
	repeat(s.pause, s.client, func() {
		c := s.held[next%len(s.held)]
		next++
		if err := c.echo(); err != nil {
			s.fail("a held connection by "+c.name, err)
			return
		}
		s.roundTrips.Add(1)
	})
	repeat(25*s.pause, s.client, func() {
		c, err := (&net.Dialer{Timeout: echoTimeout}).Dial("tcp", stable)
		if err == nil {
			h := &heldConnection{c, "", bufio.NewReader(c)}
			err = errors.Join(h.echo(), c.Close())
		}
		if err != nil {
			s.fail("a new connection", err)
			return
		}
		s.opened.Add(1)
	})
	want, _, _ := net.SplitHostPort(stable)
	for _, file := range []string{s.client, filepath.Join("/run/netns", s.Host.Name)} {
		repeat(12*s.pause, file, func() { s.query(want) })
	}
}

func (s *serviceKills) fail(what string, err error) {
	s.broken.Add(1)
	s.t.Errorf("%s: %v", what, err)
}

// query resolves the name of the Service with up to two attempts. It runs in the network namespace of a client.
func (s *serviceKills) query(want string) {
	began := time.Now()
	err := resolve(want, s.timeout)
	if err != nil {
		s.retried.Add(1)
		s.t.Logf("DNS query failed once after %s: %v", time.Since(began), err)
		err = resolve(want, s.timeout)
	}
	if err != nil {
		s.fail("DNS query", err)
		return
	}
	s.answered.Add(1)
	s.slowest.Store(max(s.slowest.Load(), int64(time.Since(began)))) // two streams: about right
}

func resolve(want string, timeout time.Duration) error {
	m := &dns.Msg{}
	m.SetQuestion("stable.default.svc.cluster.local.", dns.TypeA)
	client := dns.Client{Timeout: timeout}
	answer, _, err := client.Exchange(m, "10.43.0.10:53")
	if err != nil {
		return err
	}
	if len(answer.Answer) != 1 || !strings.HasSuffix(answer.Answer[0].String(), "\t"+want) {
		return fmt.Errorf("want %s, got %v", want, answer)
	}
	return nil
}

// waitForQuery waits until the node answers a query.
func (s *serviceKills) waitForQuery() {
	s.t.Helper()
	want := s.field("service", "stable", ".spec.clusterIP")
	s.waitUntil("an answer to a DNS query", func() string {
		if err := hosts.RunInNetNS(s.client, func() error { return resolve(want, resolverTimeout) }); err != nil {
			return err.Error()
		}
		return ""
	})
}

// round changes something, kills the agent and starts it again.
func (s *serviceKills) round(i int) {
	s.t.Helper()
	for range 1 + s.rng.IntN(4) {
		s.change()
	}
	s.sendDatagrams()
	time.Sleep(time.Duration(s.rng.ExpFloat64() * float64(200*time.Millisecond)))
	s.must(s.Agent.Kill9())
	if s.rng.IntN(3) == 0 {
		s.change()
	}
	time.Sleep(time.Duration(s.rng.Int64N(int64(maxRestartDelay))))
	s.must(s.Agent.Start(s.t.Context()))
	if i%2 == 0 { // the next kill comes while the agent starts
		time.Sleep(time.Duration(s.rng.Int64N(int64(time.Second))))
		return
	}
	s.must(s.Agent.WaitReady(s.t.Context()))
	s.waitForQuery()
}
