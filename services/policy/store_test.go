package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/policytest"
	"berth/services/policy/selection"
)

// TestLocalPodsCountBeforeTheirStatus: other pods can reach a pod of the node, and be reached by it, as
// soon as the node knows its address. A pod that the server has under the name of an earlier one is
// another pod.
func TestLocalPodsCountBeforeTheirStatus(t *testing.T) {
	t.Parallel()
	n := &testNode{host: &host{t: t}}
	s := newStore()
	s.SetLocalPod(testPod("n1", 2, "a"), podAddresses(2))
	n.setPolicy(s, "n1", "p", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("peer")}}}}})
	pending := testPod("n1", 3, "peer")
	elsewhere := testPod("n1", 3, "peer")
	elsewhere.UID, elsewhere.Status.PodIP = "other", "10.2.0.3"
	for _, c := range []struct {
		name   string
		change func()
		want   string
	}{
		{"pod without an address", func() { s.SetPod(selection.FromPod(pending)) }, ""},
		{"pod of the node", func() { s.SetLocalPod(pending, podAddresses(3)[:1]) }, "10.1.0.3"},
		{"status that is late", func() { s.SetPod(selection.FromPod(pending)) }, "10.1.0.3"},
		{"pod of another node with the name", func() { s.SetPod(selection.FromPod(elsewhere)) }, "10.2.0.3"},
		{"pod of the node is gone", func() { s.DeleteLocalPod(pending.UID) }, "10.2.0.3"},
		{"pod of another node is gone", func() { s.DeletePod(types.NamespacedName{Namespace: "n1", Name: "p3"}) }, ""},
		{"pod in a list", func() { s.ReplacePods([]*selection.Pod{selection.FromPod(elsewhere)}) }, "10.2.0.3"},
		{"pod in no list", func() { s.ReplacePods(nil) }, ""},
	} {
		c.change()
		var got []string
		for name, set := range s.take(true).whole.Sets {
			if strings.HasPrefix(name, "group4") {
				for e := range set.Elements {
					got = append(got, e.First.String())
				}
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: group has %q, want %q", c.name, text, c.want)
		}
	}
}

// TestUnchangedObjectsAreNoChange: a heartbeat of a pod or namespace does not cause a sync.
func TestUnchangedObjectsAreNoChange(t *testing.T) {
	t.Parallel()
	s := newStore()
	pod := testPod("n2", 9, "peer")
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.2.0.9"}}
	set := func() {
		s.SetPod(selection.FromPod(pod))
		s.SetNamespace("n1", selection.MakeLabels(map[string]string{"team": "x"}))
		s.SetLocalPod(testPod("n1", 2, "a"), podAddresses(2))
		s.SetPodRanges(testConfig.PodRanges)
		s.DeletePod(types.NamespacedName{Namespace: "n1", Name: "none"})
		s.DeletePolicy(types.NamespacedName{Namespace: "n1", Name: "none"})
		s.DeleteNamespace("none")
		s.DeleteLocalPod("none")
	}
	set()
	<-s.Changed()
	version := s.version
	set()
	if s.version != version {
		t.Errorf("%d changes by equal objects", s.version-version)
	}
	s.SetPodRanges([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
	if s.version == version {
		t.Error("no change by other pod ranges")
	}
}

// TestStoreWithGroups: a node with the members of groups that a server has computed has the rules of a
// node with all pods.
func TestStoreWithGroups(t *testing.T) {
	t.Parallel()
	n := &testNode{host: &host{t: t}}
	all, published := newStore(), NewStoreWithGroups()
	published.SetPodRanges(testConfig.PodRanges)
	index := selection.New()
	peer := selection.FromPodAt(testPod("n2", 9, "peer"), podAddresses(9))
	index.SetPod(peer)
	all.SetPod(peer)
	for _, s := range []*Store{all, published} {
		s.SetLocalPod(testPod("n1", 2, "a"), podAddresses(2))
		from := networkingv1.NetworkPolicyPeer{PodSelector: app("peer"), NamespaceSelector: &metav1.LabelSelector{}}
		n.setPolicy(s, "n1", "p", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{from}}}})
	}
	index.SetNamespace("n2", nil)
	for _, p := range published.policies {
		index.SetPolicy(p)
	}
	published.ReplacePolicies(slices.Collect(maps.Values(published.policies)))
	if published.Synced() {
		t.Error("synced without groups")
	}
	members := map[selection.GroupKey]map[types.NamespacedName]*selection.Member{}
	for key := range index.Take().Created {
		members[key] = maps.Collect(index.Members(key))
	}
	published.ReplaceGroups(members)
	same := func(what string, want int) {
		t.Helper()
		got, reference := published.take(true).whole, all.take(true).whole
		if err := policytest.Equal(got, reference); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		n := 0
		for name, s := range got.Sets {
			if strings.HasPrefix(name, "group") {
				n += len(s.Elements)
			}
		}
		if n != want {
			t.Errorf("%s: got %d addresses of groups, want %d", what, n, want)
		}
	}
	same("after the list", 2)
	for key := range members {
		published.DeleteMember(key, peer.Name)
	}
	all.DeletePod(peer.Name)
	same("after a removal", 0)
	for key := range members {
		published.SetMember(key, peer.Name, &peer.Member)
	}
	all.SetPod(peer)
	same("after an addition", 2)
}
