package addresses_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/addresses"
	v1 "berth/services/policy/addresses/v1"
	"berth/services/policy/policytest"
	"berth/services/policy/rules"
	"berth/services/policy/selection"
)

// members is a node that has policies and published addresses.
type members struct {
	policies  *selection.Index
	published *selection.Published
}

func (m members) SetMember(key selection.GroupKey, name types.NamespacedName, to *selection.Member) {
	m.published.SetMember(key, name, to)
}

func (m members) DeleteMember(key selection.GroupKey, name types.NamespacedName) {
	m.published.DeleteMember(key, name)
}

func (m members) ReplaceGroups(all map[selection.GroupKey]map[types.NamespacedName]*selection.Member) {
	m.published.Replace(all)
}

// cluster is a seeded cluster with a server, and with two nodes of which one knows all pods.
type cluster struct {
	*policytest.World

	index     *selection.Index // of the server
	publisher *addresses.Publisher
	objects   map[string]*v1.NetworkPolicyAddresses // as the server has them
	late      []addresses.Change                    // not received yet

	whole    *selection.Index // of the node that knows all pods
	node     members
	receiver *addresses.Receiver
	rules    [2]*rules.Compiler // of the nodes
}

func newCluster(seed uint64) *cluster {
	c := &cluster{
		World: policytest.NewWorld(seed), index: selection.New(), publisher: addresses.NewPublisher(),
		objects: map[string]*v1.NetworkPolicyAddresses{}, whole: selection.New(),
		node: members{selection.New(), selection.NewPublished()}, rules: [2]*rules.Compiler{rules.New(), rules.New()},
	}
	c.receiver = addresses.NewReceiver(c.node)
	for _, x := range c.indexes() {
		for _, ns := range c.Namespaces {
			x.SetNamespace(ns.Name, selection.MakeLabels(ns.Labels))
		}
	}
	return c
}

// indexes are those that know pods and namespaces.
func (c *cluster) indexes() []*selection.Index { return []*selection.Index{c.index, c.whole} }

// change makes one change of the cluster.
func (c *cluster) change(t *testing.T) {
	t.Helper()
	pods := len(c.Pods)
	switch action := c.Rand.IntN(16); {
	case action < 6 && pods < 150 || pods == 0:
		c.setPod(c.AddPod(policytest.Pick(c.World, policytest.LocalNode, "other")))
	case action < 8:
		p := c.Pods[c.Rand.IntN(pods)]
		c.Pods = slices.DeleteFunc(c.Pods, func(q *corev1.Pod) bool { return p == q })
		for _, x := range c.indexes() {
			x.DeletePod(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		}
		for _, r := range c.rules {
			r.DeletePod(p.UID)
		}
	case action < 10:
		i := c.Rand.IntN(pods)
		p := c.Pods[i].DeepCopy()
		p.Labels = map[string]string{"app": policytest.Pick(c.World, "a", "b")}
		p.Spec.HostNetwork = c.Rand.IntN(10) == 0
		p.Status.Phase = policytest.Pick(c.World, corev1.PodSucceeded, corev1.PodRunning)
		c.Pods[i] = p
		c.setPod(p)
	case action < 13:
		p, err := selection.FromNetworkPolicy(c.SetPolicy())
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range append(c.indexes(), c.node.policies) {
			x.SetPolicy(p)
		}
	case action == 13 && len(c.Policies) > 0:
		np := c.Policies[0]
		c.Policies = c.Policies[1:]
		for _, x := range append(c.indexes(), c.node.policies) {
			x.DeletePolicy(types.NamespacedName{Namespace: np.Namespace, Name: np.Name})
		}
	default:
		ns := c.Namespaces[c.Rand.IntN(len(c.Namespaces))]
		labels := map[string]string{corev1.LabelMetadataName: ns.Name, "team": policytest.Pick(c.World, "x", "y")}
		for _, x := range c.indexes() {
			x.SetNamespace(ns.Name, selection.MakeLabels(labels))
		}
	}
}

func (c *cluster) setPod(p *corev1.Pod) {
	compact := selection.FromPod(p)
	for _, x := range c.indexes() {
		x.SetPod(compact)
	}
	for _, r := range c.rules {
		if p.Spec.NodeName == policytest.LocalNode {
			r.SetPod(compact)
		}
	}
}

// publish makes the server publish, and checks invariants A1 and A2.
func (c *cluster) publish() error {
	changes := c.publisher.Update(c.index.Take(), c.index)
	if c.Rand.IntN(3) == 0 {
		changes = append(changes, c.publisher.RemoveUnused()...)
	}
	c.late = append(c.late, changes...)
	for _, change := range changes {
		if change.Object == nil {
			delete(c.objects, change.Name)
		} else {
			c.objects[change.Name] = change.Object
		}
	}
	seen := map[string]bool{}
	for name, o := range c.objects {
		if len(o.Members) > addresses.SliceSize || name != o.Name {
			return fmt.Errorf("A2: object %s as %s has %d members", o.Name, name, len(o.Members))
		}
		for _, m := range o.Members {
			id := fmt.Sprint(o.Group, m.Namespace, m.Name)
			if seen[id] {
				return fmt.Errorf("A1: %s is twice in its group", id)
			}
			seen[id] = true
		}
	}
	return nil
}

// receive brings all changes to the node, one by one or as a list.
func (c *cluster) receive() {
	if c.Rand.IntN(4) == 0 {
		c.receiver.Replace(slices.Collect(maps.Values(c.objects)))
		c.late = nil
	}
	for _, change := range c.late {
		if change.Object == nil {
			c.receiver.Delete(change.Name)
		} else {
			c.receiver.Set(change.Object)
		}
	}
	c.late = nil
}

// check compares the nodes: invariant A4.
func (c *cluster) check() error {
	for _, p := range c.Policies {
		compact, err := selection.FromNetworkPolicy(p)
		if err != nil {
			return err
		}
		if !c.receiver.Complete(compact) {
			return fmt.Errorf("A3: groups of policy %s are not complete", compact.Name)
		}
	}
	c.rules[0].Update(c.whole.Take(), c.whole)
	c.rules[1].Update(c.node.published.Take(c.node.policies), c.node.published)
	for i, groups := range []rules.Groups{c.whole, c.node.published} {
		c.rules[i].Transaction(groups)
	}
	if err := policytest.Equal(c.rules[1].Ruleset(), c.rules[0].Ruleset()); err != nil {
		return fmt.Errorf("A4: %w", err)
	}
	return nil
}

// TestNodesWithAddressesHaveTheSameRules: the rules of a node that receives addresses are those of a node
// that knows all pods and namespaces of the cluster.
func TestNodesWithAddressesHaveTheSameRules(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		c := newCluster(seed)
		for step := range 150 {
			c.change(t)
			if c.Rand.IntN(2) > 0 {
				continue
			}
			if err := c.publish(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if c.Rand.IntN(2) > 0 {
				continue
			}
			c.receive()
			if err := c.check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
	}
}

// TestGroupAppearsComplete: slice 0 of a new group comes last (A3), and a pod changes one object (A2).
func TestGroupAppearsComplete(t *testing.T) {
	t.Parallel()
	index, publisher := selection.New(), addresses.NewPublisher()
	index.SetNamespace("n", nil)
	const pods = 3*addresses.SliceSize + 10
	pod := func(i int) *selection.Pod {
		return selection.FromPodAt(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprint("p", i)}},
			[]netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i % 250)})})
	}
	for i := range pods {
		index.SetPod(pod(i))
	}
	policy, err := selection.FromNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	index.SetPolicy(policy)
	node := members{selection.New(), selection.NewPublished()}
	receiver := addresses.NewReceiver(node)
	for _, c := range publisher.Update(index.Take(), index) {
		if receiver.Complete(policy) {
			t.Errorf("object %s comes after slice 0", c.Name)
		}
		receiver.Set(c.Object)
	}
	if n := len(maps.Collect(node.published.Members(policy.Groups[0].Key))); n != pods || !receiver.Complete(policy) {
		t.Errorf("got %d members, want %d", n, pods)
	}
	index.DeletePod(types.NamespacedName{Namespace: "n", Name: "p60"})
	if changes := publisher.Update(index.Take(), index); len(changes) != 1 {
		t.Errorf("a deleted pod changes %d objects, want 1", len(changes))
	}
	index.DeletePolicy(policy.Name)
	if changes := publisher.Update(index.Take(), index); len(changes) != 0 || !publisher.Unused() {
		t.Errorf("a group that became unused has changes: %v", changes)
	}
	if changes := publisher.RemoveUnused(); len(changes) != 4 || publisher.Unused() {
		t.Errorf("%d objects removed, want 4", len(changes))
	}
}

// TestMemberMovesBetweenObjects: a member that appears in an object before it disappears from another one,
// as after a restart of the server, stays.
func TestMemberMovesBetweenObjects(t *testing.T) {
	t.Parallel()
	node := members{selection.New(), selection.NewPublished()}
	receiver := addresses.NewReceiver(node)
	object := func(slice int32, names ...string) *v1.NetworkPolicyAddresses {
		o := &v1.NetworkPolicyAddresses{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("g-", slice)}, Group: "g",
			Slice: slice}
		for _, name := range names {
			o.Members = append(o.Members, v1.Member{Namespace: "n", Name: name, Addresses: []string{"10.0.0.1", "bad"},
				Ports: []v1.Port{{Name: "http", Protocol: "TCP", Port: 80},
					{Name: "bad", Protocol: "TCP", Port: 70000}}})
		}
		return o
	}
	receiver.Set(object(0, "a", "b"))
	receiver.Set(object(1, "a"))
	receiver.Set(object(0, "b"))
	got := maps.Collect(node.published.Members("g"))
	if len(got) != 2 {
		t.Fatalf("got %d members, want 2", len(got))
	}
	for _, m := range got {
		if len(m.Addresses) != 1 || len(m.Ports) != 1 {
			t.Errorf("got %v, want one address and one port", m)
		}
	}
	receiver.Delete("g-1")
	receiver.Delete("g-0")
	receiver.Delete("g-0")
	if n := len(maps.Collect(node.published.Members("g"))); n != 0 {
		t.Errorf("%d members of deleted objects stay", n)
	}
}
