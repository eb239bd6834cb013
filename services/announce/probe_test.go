package announce

import (
	"net/netip"
	"sync"
	"testing"
)

// conflicts collects what the nodes report.
type conflicts struct {
	mu  sync.Mutex
	all []Conflict
}

func (c *conflicts) add(x Conflict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, x)
}

// count returns how many reports there are of an address with the given properties.
func (c *conflicts) count(vip string, announced, over bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.all {
		if x.Address == netip.MustParseAddr(vip) && x.Announced == announced && x.Over == over {
			n++
		}
	}
	return n
}

// TestForeignHostHasAddress: no node announces an address that another host of the network has, and one does as soon
// as the host does not have it any more.
func TestForeignHostHasAddress(t *testing.T) {
	t.Parallel()
	l := newLANWith(t, false, func(l *lan) {
		foreign := newHost(t, "foreign")
		foreign.plug(l.fabric, "br0")
		foreign.address("eth0", vip4+"/24", vip6+"/64")
		l.foreign = foreign
	})
	mac := l.foreign.link("eth0").Attrs().HardwareAddr.String()
	for _, vip := range []string{vip4, vip6} {
		for _, n := range l.nodes {
			l.eventually(answerTimeout, n.name+" finds the host with "+vip, func() bool {
				c, found := n.a.Conflict(netip.MustParseAddr(vip))
				return found && c.HardwareAddress == mac && c.Service.Name.String() == "default/web"
			})
			if got := n.reported.count(vip, false, false); got != 1 {
				t.Errorf("%s: %d reports of %s", n.name, got, vip)
			}
		}
		if got := l.announcers(vip); len(got) > 0 {
			t.Errorf("%v announce %s", got, vip)
		}
	}
	for _, n := range l.nodes {
		for name, want := range map[string]float64{"conflicting_addresses": 2, "conflicts_total": 2} {
			if got := n.metric(name); got != want {
				t.Errorf("%s: %s is %v, want %v", n.name, name, got, want)
			}
		}
	}
	for _, text := range []string{vip4 + "/24", vip6 + "/64"} {
		l.foreign.must(l.foreign.h.AddrDel(l.foreign.link("eth0"), mustAddr(t, text)))
	}
	for _, vip := range []string{vip4, vip6} {
		node, _, took := l.answering(answerTimeout, vip, anyNode)
		t.Logf("%s announces %s %s after the host gave it up", node.name, vip, took)
		if took > conflictRetry+failoverBound() {
			t.Errorf("%s: only after %s", vip, took)
		}
		if _, found := node.a.Conflict(netip.MustParseAddr(vip)); found || node.reported.count(vip, false, true) != 1 {
			t.Errorf("%s still has a conflict for %s", node.name, vip)
		}
	}
}

// TestForeignHostTakesAddress: the announcer reports a host that takes its address, and restores the caches of
// clients. If the announcer dies, the others see that the host has the address.
func TestForeignHostTakesAddress(t *testing.T) {
	t.Parallel()
	l := newLAN(t, false)
	holder, _, _ := l.answering(answerTimeout, vip4, anyNode)
	foreign := newHost(t, "foreign")
	foreign.plug(l.fabric, "br1")
	foreign.address("eth0", vip4+"/24")
	// The host sends a packet, for which it asks for a neighbor with the address as that of the sender.
	_, _ = foreign.ask("192.0.2.100:1")
	l.eventually(answerTimeout, "the announcer reports the host", func() bool {
		return holder.reported.count(vip4, true, false) == 1
	})
	if again, _, _ := l.answering(answerTimeout, vip4, anyNode); again != holder {
		t.Errorf("%s answers instead of %s", again.name, holder.name)
	}
	holder.stop()
	for _, n := range l.nodes {
		if n != holder {
			l.eventually(answerTimeout, n.name+" finds the host", func() bool {
				_, found := n.a.Conflict(netip.MustParseAddr(vip4))
				return found
			})
		}
	}
	if got := l.announcers(vip4); len(got) > 0 && got[0] != holder.name {
		t.Errorf("%v announce the address of the other host", got)
	}
}

// TestNodesAreNoConflict: nodes that take addresses from each other and restart at the same time see no conflict.
func TestNodesAreNoConflict(t *testing.T) {
	t.Parallel()
	l := newLAN(t, false)
	for range 3 {
		holder, _, _ := l.answering(answerTimeout, vip4, anyNode)
		for _, n := range l.nodes {
			if n != holder {
				n.stop()
				n.start()
			}
		}
		holder.serving.Store(false)
		l.answering(answerTimeout, vip4, func(n string) bool { return n != holder.name })
		holder.serving.Store(true)
	}
	for _, n := range l.nodes {
		for _, vip := range []string{vip4, vip6} {
			if c, found := n.a.Conflict(netip.MustParseAddr(vip)); found || len(n.reported.all) > 0 {
				t.Errorf("%s: conflict %v, reports %v", n.name, c, n.reported.all)
			}
		}
	}
}

// metric returns the value of a metric of the announcer.
func (n *lanNode) metric(name string) float64 {
	n.t.Helper()
	all, err := n.registry.Gather()
	n.must(err)
	for _, f := range all {
		if f.GetName() == "berth_load_balancer_"+name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	n.t.Fatalf("no metric %s in %d", name, len(all))
	return 0
}

func TestConflictMessages(t *testing.T) {
	t.Parallel()
	c := Conflict{Address: netip.MustParseAddr(vip4), HardwareAddress: "02:00:00:00:00:01"}
	for _, row := range []struct {
		announced, over bool
		want            string
	}{
		{false, false, "load balancer address 192.0.2.200 is not announced: the host with hardware address " +
			"02:00:00:00:00:01 has it"},
		{true, false, "the host with hardware address 02:00:00:00:00:01 uses load balancer address 192.0.2.200 too"},
		{false, true, "no other host has load balancer address 192.0.2.200 any more"},
	} {
		c.Announced, c.Over = row.announced, row.over
		if got := c.Message(); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}
