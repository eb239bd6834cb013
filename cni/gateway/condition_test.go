package gateway

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/cni/routes"
)

func TestConditionNetworkUnavailable(t *testing.T) {
	t.Parallel()
	problem := []routes.Problem{{Node: "n2", Message: "behind a router"}}
	for _, row := range []struct {
		name       string
		status     Status
		noPodCIDRs bool
		want       Condition
	}{
		{"foreign network", Status{}, true, Condition{false, "BerthHasRoutes",
			"the pod network is not managed by berth: another configuration is used in /net.d"}},
		{"error", Status{Enabled: true, Err: "no netlink"}, true, Condition{true, "BerthHasNoRoutes", "no netlink"}},
		{"no pod CIDR", Status{Enabled: true}, true, Condition{true, "BerthHasNoPodRange",
			"no pod CIDR assigned to the node (spec.podCIDRs)"}},
		{"some nodes are unreachable", Status{Enabled: true, Nodes: 2, Reachable: 1, Problems: problem}, false,
			Condition{false, "BerthHasRoutes", "pods of 1 of 2 other nodes are reachable; node n2: behind a router"}},
		{"nodes are unknown", Status{Enabled: true, NodesUnknown: "forbidden"}, false,
			Condition{false, "BerthHasRoutes", "pods of 0 of 0 other nodes are reachable; forbidden"}},
	} {
		if got := row.status.condition("/net.d", row.noPodCIDRs); got != row.want {
			t.Errorf("%s: got %+v, want %+v", row.name, got, row.want)
		}
	}
}

func TestUnavailableByBerth(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		status corev1.ConditionStatus
		reason string
		want   bool
	}{
		{corev1.ConditionTrue, "BerthHasNoRoutes", true},
		{corev1.ConditionFalse, "BerthHasRoutes", false},
		{corev1.ConditionTrue, "NoRouteCreated", false},
	} {
		n := &corev1.Node{}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeNetworkUnavailable, Status: row.status, Reason: row.reason},
		}
		if got := UnavailableByBerth(n); got != row.want {
			t.Errorf("%s %s: got %t", row.status, row.reason, got)
		}
	}
}

func TestOtherNodesIgnoreInvalidAddresses(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", CreationTimestamp: metav1.NewTime(created)}}
	n.Spec.PodCIDRs = []string{"10.85.2.0/24", "none"}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "192.0.2.9"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.2"},
		{Type: corev1.NodeInternalIP, Address: "n2"},
	}
	self := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	got := otherNodes([]runtime.Object{self, n, &corev1.Pod{}}, "n1")
	want := routes.Node{
		Name: "n2", RegisteredAt: created, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.85.2.0/24")},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}
	if len(got) != 1 || !same(got[0], want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
