package policy

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	networkingv1 "k8s.io/api/networking/v1"

	"berth/services/policy/selection"
)

// TestReusedAddressHasNoConnections: a pod does not inherit the connections of an earlier pod with its
// address.
func TestReusedAddressHasNoConnections(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	e := n.enforcer(s)
	n.setPolicy(s, "n2", "deny", denyIngress)
	pod4, _ := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	n.must(e.Sync())
	c, err := inside(n.outside.ns, func() (*net.UDPConn, error) {
		return net.DialUDP("udp", nil, &net.UDPAddr{IP: pod4.AsSlice(), Port: 80})
	})
	n.must(err)
	defer func() { _ = c.Close() }()
	send := func(payload string) bool {
		before := n.dropped()
		delivered, write := false, func() {
			_, err := c.Write([]byte(payload))
			n.must(err)
		}
		sendUntil(t, "packet is delivered or dropped", write, func() bool {
			delivered = n.at(pod4).hasReceived(payload)
			return delivered || n.dropped() > before
		})
		return delivered
	}
	if !send("first") {
		t.Fatal("packet to a pod without a policy was dropped")
	}
	_, err = c.Read(make([]byte, 16)) // with the answer, the connection is established
	n.must(err)
	s.DeleteLocalPod("uid-a-2")
	s.SetLocalPod(testPod("n2", 2, "new"), podAddresses(2))
	n.must(e.Sync())
	if send("second") {
		t.Error("packet of a connection of the earlier pod was delivered to an isolated pod")
	}
}

// TestPoliciesApplyToServiceTraffic: policies for traffic to a Service compare the addresses of its endpoint.
func TestPoliciesApplyToServiceTraffic(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.outside.addRoute("10.96.0.0/16", "192.0.2.1")
	s := newStore()
	e := n.enforcer(s)
	server4, _ := n.setLocalPod(s, testPod("n1", 2, "server"), 2)
	client4, _ := n.setLocalPod(s, testPod("n1", 3, "client"), 3)
	other4, _ := n.setLocalPod(s, testPod("n1", 4, "other"), 4)
	service := netip.MustParseAddr("10.96.0.1")
	c, err := kernel{n.ns}.conn()
	n.must(err)
	t4 := c.AddTable(&nftables.Table{Name: "service", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{Name: "prerouting", Table: t4, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	c.AddRule(&nftables.Rule{Table: t4, Chain: chain, Exprs: []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: service.AsSlice()},
		&expr.Immediate{Register: 1, Data: server4.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(nftables.TableFamilyIPv4), RegAddrMin: 1},
	}})
	n.must(c.Flush())
	n.setPolicy(s, "n1", "server", networkingv1.NetworkPolicySpec{
		PodSelector: *app("server"),
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("client")}}}},
	})
	n.setPolicy(s, "n1", "other", networkingv1.NetworkPolicySpec{
		PodSelector: *app("other"), PolicyTypes: []networkingv1.PolicyType{"Egress"},
		Egress: []networkingv1.NetworkPolicyEgressRule{{
			To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.96.0.0/16"}}}}},
	})
	n.must(e.Sync())
	n.expect("from a selected pod", client4, service, selection.TCP, 80, true)
	n.expect("from outside", outside4, service, selection.TCP, 80, false)
	n.expect("address of a Service in a block", other4, service, selection.TCP, 80, false)
}

// TestRunUnderChurn changes the input from several goroutines while Run follows. Connections of pods
// that do not change continue, what is denied stays denied, and at the end the kernel has the ruleset.
func TestRunUnderChurn(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	e := n.enforcer(s)
	client4, client6 := n.setLocalPod(s, testPod("n1", 2, "client"), 2)
	server4, server6 := n.setLocalPod(s, testPod("n1", 3, "server"), 3)
	n.setPolicy(s, "n1", "server", networkingv1.NetworkPolicySpec{
		PodSelector: *app("server"), Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("client")}}}}})
	n.must(e.Sync())
	works := []func() error{n.connection(client4, server4), n.connection(client6, server6)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	var changing sync.WaitGroup
	errs := make(chan error, 4)
	for worker := range 4 {
		changing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 5))
			for range 40 {
				number := 10 + 10*worker + rng.IntN(10)
				pod := testPod("n1", number, string(rune('a'+rng.IntN(3))))
				s.SetLocalPod(pod, podAddresses(number))
				if err := e.WaitInstalled(ctx, pod.UID); err != nil {
					errs <- err
					return
				}
				n.churn(s, rng)
				if rng.IntN(2) == 0 {
					s.DeleteLocalPod(pod.UID)
				}
			}
		})
	}
	for range 30 {
		for _, works := range works {
			n.must(works())
		}
		n.expect("allowed peer", client6, server6, selection.TCP, 81, true)
	}
	changing.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	stop()
	n.must(<-done)
	n.must(e.Sync())
	n.expect("denied peer", outside4, server4, selection.TCP, 81, false)
	if difference, err := e.kernel.differs(s.take(true).whole); difference != "" || err != nil {
		t.Errorf("rules differ: %s, error %v", difference, err)
	}
}
