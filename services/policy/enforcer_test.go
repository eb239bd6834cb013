package policy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/nftables"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/services/policy/selection"
)

// testLog is a log that a test reads.
type testLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *testLog) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// newStore returns a synced store for a test node.
func newStore() *Store {
	s := NewStore()
	s.SetPodRanges(testConfig.PodRanges)
	s.ReplacePolicies(nil)
	s.ReplacePods(nil)
	s.ReplaceNamespaces(map[string]selection.Labels{
		"n1": selection.MakeLabels(map[string]string{"team": "x"}),
		"n2": selection.MakeLabels(map[string]string{"team": "y"}),
	})
	return s
}

func (n *testNode) enforcer(s *Store) *Enforcer {
	return New(Options{Store: s, NetNS: n.ns, Log: slog.New(slog.DiscardHandler)})
}

func testPod(namespace string, number int, app string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%d", number),
		UID: types.UID(fmt.Sprintf("uid-%s-%d", app, number)), Labels: map[string]string{"app": app}}}
	p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{
		{Name: "web", ContainerPort: 81}, {Name: "dns", ContainerPort: 82, Protocol: corev1.ProtocolUDP}}}}
	return p
}

// setLocalPod adds a pod to the node and to the store, and returns its IPv4 and IPv6 address.
func (n *testNode) setLocalPod(s *Store, pod *corev1.Pod, number int) (v4, v6 netip.Addr) {
	n.t.Helper()
	n.addPod(number)
	s.SetLocalPod(pod, podAddresses(number))
	return podAddresses(number)[0], podAddresses(number)[1]
}

func (n *testNode) setPolicy(s *Store, namespace, name string, spec networkingv1.NetworkPolicySpec) {
	n.t.Helper()
	p, err := selection.FromNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec})
	n.must(err)
	s.SetPolicy(p)
}

func app(value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
}

var (
	denyIngress = networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}
	denyAll     = networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"}}

	outside4, outside6 = netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")
)

func (n *testNode) expect(what string, from, to netip.Addr, protocol selection.Protocol, port int, want bool) {
	n.t.Helper()
	if got := n.reaches(from, to, protocol, port); got != want {
		n.t.Errorf("%s: %s > %s %s/%d: delivered %t, want %t", what, from, to, protocol, port, got, want)
	}
}

func TestEnforcerPolicesPods(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	e := n.enforcer(s)
	server4, server6 := n.setLocalPod(s, testPod("n1", 2, "server"), 2)
	client4, client6 := n.setLocalPod(s, testPod("n1", 3, "client"), 3)
	other4, _ := n.setLocalPod(s, testPod("n2", 4, "client"), 4)
	n.must(e.Sync())
	if exists, err := e.kernel.exists(); exists || err != nil {
		t.Fatalf("P1: table exists %t without policies, error %v", exists, err)
	}
	n.expect("no policies", client4, server4, selection.TCP, 80, true)

	web := intstr.FromString("web")
	n.setPolicy(s, "n1", "server", networkingv1.NetworkPolicySpec{
		PodSelector: *app("server"),
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: app("client")}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: &web}},
		}},
	})
	n.must(e.Sync())
	n.expect("named port from a selected pod", client4, server4, selection.TCP, 81, true)
	n.expect("named port from a selected pod", client6, server6, selection.TCP, 81, true)
	n.expect("another port", client4, server4, selection.TCP, 80, false)
	n.expect("another protocol", client6, server6, selection.UDP, 81, false)
	n.expect("pod of another namespace", other4, server4, selection.TCP, 81, false)
	n.expect("address outside", outside4, server4, selection.TCP, 81, false)
	n.expect("pod without a policy", server4, client4, selection.TCP, 80, true)
	n.expect("outside from an isolated pod", server6, outside6, selection.UDP, 443, true)
	for _, host := range []string{"192.0.2.1", "10.1.0.1", "fd01::1"} {
		to := server4
		if strings.Contains(host, ":") {
			to = server6
		}
		n.expect("P5: probe from the node", netip.MustParseAddr(host), to, selection.TCP, 80, true)
	}
	if got := e.Status(); !got.Enabled || !got.Synced || got.Policies != 1 || got.IsolatedPods != 1 ||
		got.BridgeProblem != "" || got.Err != "" {
		t.Errorf("unexpected status %+v", got)
	}
	n.explainServer(e)

	s.DeletePolicy(types.NamespacedName{Namespace: "n1", Name: "server"})
	n.must(e.Sync())
	n.expect("no policies any more", other4, server4, selection.TCP, 443, true)
	if exists, err := e.kernel.exists(); exists || err != nil {
		t.Errorf("P1: table exists %t without policies, error %v", exists, err)
	}
}

// explainServer checks what Explain and the metrics say after TestEnforcerPolicesPods has sent packets.
func (n *testNode) explainServer(e *Enforcer) {
	n.t.Helper()
	x, known, err := e.Explain("uid-server-2")
	if err != nil || !known || !x.Enforced || !x.Installed || !x.Ingress.Isolated || x.Egress.Isolated {
		n.t.Fatalf("got explanation %+v, known %t, error %v", x, known, err)
	}
	allowed := x.Ingress.Policies[0].AllowedConnections
	if allowed < 2 {
		n.t.Errorf("got %d allowed connections, want at least 2", allowed)
	}
	want := []SelectedPolicy{
		{"n1", "server", allowed, []string{"from 1 pods of namespace n1 pods(app=client) on TCP web"}}}
	if got := fmt.Sprint(x.Ingress.Policies); got != fmt.Sprint(want) {
		n.t.Errorf("policies: got %s, want %v", got, want)
	}
	if x.Ingress.DroppedPackets < 4 || x.Egress.DroppedPackets != 0 {
		n.t.Errorf("dropped packets: got %d and %d, want at least 4 and 0",
			x.Ingress.DroppedPackets, x.Egress.DroppedPackets)
	}
	if _, known, _ := e.Explain("other"); known {
		n.t.Error("an unknown pod is known")
	}
	if err := testutil.CollectAndCompare(e, strings.NewReader(fmt.Sprintf(`
# HELP berth_network_policies Number of network policies in the cluster.
# TYPE berth_network_policies gauge
berth_network_policies 1
# HELP berth_network_policy_dropped_packets Number of packets to or from present pods that were dropped, by `+
		`direction and reason: policy, or unknown for addresses of the pod CIDRs that no pod has.
# TYPE berth_network_policy_dropped_packets gauge
berth_network_policy_dropped_packets{direction="egress",reason="policy"} 0
berth_network_policy_dropped_packets{direction="egress",reason="unknown"} 0
berth_network_policy_dropped_packets{direction="ingress",reason="policy"} %d
berth_network_policy_dropped_packets{direction="ingress",reason="unknown"} 0
`, x.Ingress.DroppedPackets)), "berth_network_policies", "berth_network_policy_dropped_packets"); err != nil {
		n.t.Error(err)
	}
}

// TestPodIsWaitedFor: an address of the pod range is cut off until its rules are in place, and
// WaitInstalled returns then.
func TestPodIsWaitedFor(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	e := n.enforcer(s)
	pod4, _ := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	n.setPolicy(s, "n2", "deny", denyAll) // selects no pod of the node
	n.must(e.Sync())
	n.addPod(3)
	new4 := podAddresses(3)[0]
	n.expect("from an unknown pod", new4, pod4, selection.TCP, 80, false)
	n.expect("to an unknown pod", outside4, new4, selection.TCP, 80, false)
	n.expect("from an unknown pod", podAddresses(3)[1], outside6, selection.UDP, 80, false)
	n.expect("probe to an unknown pod", netip.MustParseAddr("10.1.0.1"), new4, selection.TCP, 80, true)

	if err := e.WaitInstalled(t.Context(), "uid-b-3"); !errors.Is(err, ErrUnknownPod) {
		t.Errorf("unknown pod: got error %v", err)
	}
	s.SetLocalPod(testPod("n1", 3, "b"), podAddresses(3))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.WaitInstalled(canceled, "uid-b-3"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled wait: got error %v", err)
	}
	host := testPod("n1", 99, "host")
	host.Spec.HostNetwork = true
	s.SetLocalPod(host, []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	n.must(e.WaitInstalled(t.Context(), host.UID))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	n.must(e.WaitInstalled(t.Context(), "uid-b-3"))
	n.expect("from a known pod", new4, pod4, selection.TCP, 80, true)
	s.SetLocalPod(testPod("n2", 3, "c"), podAddresses(3)) // another pod with the address
	n.must(e.WaitInstalled(t.Context(), "uid-c-3"))
	n.expect("from an isolated pod", new4, pod4, selection.TCP, 80, false)
	stop()
	n.must(<-done)
	n.expect("after Run has returned", new4, pod4, selection.TCP, 80, false)
}

// connection opens a TCP connection and returns a function that reports whether it still works.
func (n *testNode) connection(from, to netip.Addr) (works func() error) {
	n.t.Helper()
	c, err := inside(n.at(from).ns, func() (net.Conn, error) {
		return net.Dial("tcp", netip.AddrPortFrom(to, 80).String())
	})
	n.must(err)
	n.t.Cleanup(func() { _ = c.Close() })
	return func() error {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}
}

// TestEstablishedConnectionsContinue: a policy that denies a connection applies to new ones only.
func TestEstablishedConnectionsContinue(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	e := n.enforcer(s)
	pod4, pod6 := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	peer4, peer6 := n.setLocalPod(s, testPod("n1", 3, "a"), 3)
	n.setPolicy(s, "n2", "other", denyAll)
	n.must(e.Sync())
	works := []func() error{n.connection(peer4, pod4), n.connection(peer6, pod6), n.connection(outside4, pod4)}
	n.setPolicy(s, "n1", "deny", denyAll)
	n.must(e.Sync())
	n.expect("new connection", peer4, pod4, selection.TCP, 80, false)
	n.expect("new connection", outside6, pod6, selection.TCP, 80, false)
	for _, works := range works {
		n.must(works())
	}
}

// handles returns the handles of all rules, which change when rules are written again.
func (n *testNode) handles() (out []uint64) {
	n.t.Helper()
	c, err := kernel{n.ns}.conn()
	n.must(err)
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	n.must(err)
	for _, chain := range chains {
		rules, err := c.GetRules(chain.Table, chain)
		n.must(err)
		for _, r := range rules {
			out = append(out, r.Handle)
		}
	}
	slices.Sort(out)
	return out
}

func TestRestartKeepsRules(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	input := func() *Store {
		s := newStore()
		for i := 2; i < 5; i++ {
			s.SetLocalPod(testPod("n1", i, "a"), podAddresses(i))
		}
		n.setPolicy(s, "n1", "deny", denyIngress)
		n.setPolicy(s, "n1", "some", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: app("b")},
				{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"192.0.2.0/28"}}},
				{IPBlock: &networkingv1.IPBlock{CIDR: "2001:db8::/32"}}},
			Ports: []networkingv1.NetworkPolicyPort{{}}}}})
		return s
	}
	for i := 2; i < 5; i++ {
		n.addPod(i)
	}
	pod4, pod6 := podAddresses(2)[0], podAddresses(2)[1]
	n.must(n.enforcer(input()).Sync())
	n.expect("exception", outside4, pod4, selection.TCP, 80, false)
	works := n.connection(outside6, pod6)
	handles, dropped := n.handles(), n.dropped()

	unsynced := NewStore()
	unsynced.SetPodRanges(testConfig.PodRanges)
	unsynced.ReplacePolicies(nil)
	n.must(n.enforcer(unsynced).Sync())
	if !slices.Equal(n.handles(), handles) {
		t.Error("P2: rules changed before the store was synced")
	}
	e := n.enforcer(input())
	n.must(e.Sync())
	if got := n.dropped(); !slices.Equal(n.handles(), handles) || got != dropped {
		t.Errorf("P3: rules written again by a restart; dropped packets: got %d, want %d", got, dropped)
	}
	changed := input()
	n.setPolicy(changed, "n1", "some", denyIngress)
	n.must(n.enforcer(changed).Sync())
	if got := n.dropped(); slices.Equal(n.handles(), handles) || got != dropped {
		t.Errorf("P3: restart with other input: rules are the same, or %d dropped packets instead of %d", got, dropped)
	}
	n.expect("new connection", outside6, pod6, selection.TCP, 80, false)
	n.must(works())
}

func TestDisabledEnforcerRemovesTable(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	s := newStore()
	enabled := true
	var statuses []Status
	e := New(Options{Store: s, NetNS: n.ns, Log: slog.New(slog.DiscardHandler), Enabled: func() bool { return enabled },
		OnChange: func(s Status) { statuses = append(statuses, s) }})
	pod4, _ := n.setLocalPod(s, testPod("n1", 2, "a"), 2)
	n.setPolicy(s, "n1", "deny", denyIngress)
	n.must(e.Sync())
	n.expect("enabled", outside4, pod4, selection.TCP, 80, false)
	enabled = false
	n.must(e.WaitInstalled(t.Context(), "none"))
	n.must(e.Sync())
	n.expect("disabled", outside4, pod4, selection.TCP, 80, true)
	if exists, err := e.kernel.exists(); exists || err != nil {
		t.Errorf("P1: table exists %t, error %v", exists, err)
	}
	enabled = true
	n.must(e.Sync())
	n.expect("enabled again", outside4, pod4, selection.TCP, 80, false)
	if len(statuses) != 3 || statuses[1].Enabled || !statuses[2].Enabled {
		t.Errorf("unexpected statuses %+v", statuses)
	}
}
