package policy

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/services/policy/policytest"
	"berth/services/policy/selection"
)

// values is a local store.
type values struct {
	mu      sync.Mutex
	content map[string][]byte
	writes  int
}

func (v *values) put(changes map[string][]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.writes++
	for key, value := range changes {
		if v.content[key] = value; value == nil {
			delete(v.content, key)
		}
	}
}

// restored returns the ruleset of a store that has the stored values, with the pods of the node.
func (v *values) restored(t *testing.T, to *Store, local []*selection.Pod) *Store {
	t.Helper()
	c := &Checkpoint{Store: to, Put: func(map[string][]byte) { t.Error("written by Restore") }}
	if err := c.Restore(v.content); err != nil {
		t.Fatal(err)
	}
	to.SetPodRanges(testConfig.PodRanges)
	for _, p := range local {
		to.setLocal(p)
	}
	return to
}

// TestCheckpointModel changes a store at random. At any time, a store that is restored from the
// checkpoint has the same ruleset.
func TestCheckpointModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		w := policytest.NewWorld(seed)
		s := newStore()
		for _, ns := range w.Namespaces {
			s.SetNamespace(ns.Name, selection.MakeLabels(ns.Labels))
		}
		stored := &values{content: map[string][]byte{}}
		c := &Checkpoint{Store: s, Put: stored.put}
		s.follow()
		var local []*selection.Pod
		for step := range 40 {
			switch w.Rand.IntN(6) {
			case 0, 1:
				p := selection.FromPod(w.AddPod("other"))
				s.SetPod(p)
			case 2:
				p := selection.FromPod(w.AddPod(policytest.LocalNode))
				local = append(local, p)
				s.setLocal(p)
				s.SetPod(p)
			case 3, 4:
				p, err := selection.FromNetworkPolicy(w.SetPolicy())
				if err != nil {
					t.Fatal(err)
				}
				s.SetPolicy(p)
			case 5:
				for name := range maps.Clone(s.policies) {
					if w.Rand.IntN(2) == 0 {
						s.DeletePolicy(name)
					}
				}
				for name, p := range s.pods {
					if w.Rand.IntN(4) == 0 && !slices.Contains(local, p) {
						s.DeletePod(name)
						break
					}
				}
			}
			if w.Rand.IntN(3) > 0 {
				continue
			}
			c.write()
			if len(s.policies) == 0 && len(stored.content) != 1 {
				t.Fatalf("seed %d, step %d: %d values without policies, want 1", seed, step, len(stored.content))
			}
			got := stored.restored(t, NewStore(), local)
			if err := policytest.Equal(got.take(true).whole, s.take(true).whole); err != nil {
				t.Fatalf("seed %d, step %d: restored: %v", seed, step, err)
			}
			writes := stored.writes
			s.ReplacePolicies(slices.Collect(maps.Values(s.policies)))
			if c.write(); stored.writes != writes {
				t.Fatalf("seed %d, step %d: unchanged objects are written", seed, step)
			}
		}
	}
}

// TestCheckpointWithGroups: members of groups that a server has computed are stored.
func TestCheckpointWithGroups(t *testing.T) {
	t.Parallel()
	n := &testNode{host: &host{t: t}}
	s := NewStoreWithGroups()
	stored := &values{content: map[string][]byte{}}
	c := &Checkpoint{Store: s, Put: stored.put}
	s.follow()
	s.SetPodRanges(testConfig.PodRanges)
	local := []*selection.Pod{selection.FromPodAt(testPod("n1", 2, "a"), podAddresses(2))}
	s.setLocal(local[0])
	c.write()
	if len(stored.content) != 0 {
		t.Errorf("%d values before the store was synced", len(stored.content))
	}
	n.setPolicy(s, "n1", "p", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: app("peer")}}}}})
	s.ReplacePolicies(slices.Collect(maps.Values(s.policies)))
	const key = "namespace n1 pods(app=peer)"
	name := types.NamespacedName{Namespace: "n1", Name: "peer"}
	member := func(number int) *selection.Member { return &selection.Member{Addresses: podAddresses(number)} }
	for i, change := range []func(){
		func() {
			s.ReplaceGroups(map[selection.GroupKey]map[types.NamespacedName]*selection.Member{key: {name: member(9)}})
		},
		func() { s.SetMember(key, types.NamespacedName{Namespace: "n1", Name: "second"}, member(8)) },
		func() { s.DeleteMember(key, name) },
		func() { s.ReplaceGroups(nil) },
	} {
		change()
		c.write()
		got := stored.restored(t, NewStoreWithGroups(), local)
		if err := policytest.Equal(got.take(true).whole, s.take(true).whole); err != nil {
			t.Errorf("change %d: restored: %v", i, err)
		}
		members := 0
		for key := range stored.content {
			if strings.HasPrefix(key, CheckpointPrefix+ofMember) {
				members++
			}
		}
		if want := []int{1, 2, 1, 0}[i]; members != want {
			t.Errorf("change %d: %d members are stored, want %d", i, members, want)
		}
	}
}

// TestDamagedCheckpoint: a value that cannot be decoded leaves the store not synced.
func TestDamagedCheckpoint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		values map[string][]byte
		err    bool
	}{
		{"no values", nil, false},
		{"values of an unfinished list", map[string][]byte{CheckpointPrefix + "pod/n/p": []byte("{}")}, false},
		{"policy without a selector", map[string][]byte{keySynced: []byte("{}"),
			CheckpointPrefix + "policy/n/p": []byte(`{"Subject":"a in ("}`)}, true},
		{"pod", map[string][]byte{keySynced: []byte("{}"), CheckpointPrefix + "pod/n/p": []byte("x")}, true},
	} {
		s := NewStore()
		err := (&Checkpoint{Store: s}).Restore(c.values)
		if (err != nil) != c.err || s.Synced() {
			t.Errorf("%s: synced %t, error %v", c.name, s.Synced(), err)
		}
	}
}

// TestCheckpointRun: the last changes are written when Run returns.
func TestCheckpointRun(t *testing.T) {
	t.Parallel()
	n := &testNode{host: &host{t: t}}
	s := newStore()
	stored := &values{content: map[string][]byte{}}
	c := &Checkpoint{Store: s, Put: stored.put}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 20 {
		s.SetPod(selection.FromPodAt(testPod("n1", i, "a"), []netip.Addr{podAddresses(20 + rng.IntN(9))[0]}))
	}
	n.setPolicy(s, "n1", "p", denyAll)
	stop()
	running.Wait()
	got := stored.restored(t, NewStore(), nil)
	if len(got.pods) != 20 || got.PolicyNumber() != 1 || !got.Synced() {
		t.Errorf("restored %d pods and %d policies, synced %t", len(got.pods), got.PolicyNumber(), got.Synced())
	}
}

// TestCheckpointOfAnotherSource: stored pods are of no use to a node that reads groups, and the other way
// round. They are deleted.
func TestCheckpointOfAnotherSource(t *testing.T) {
	t.Parallel()
	n := &testNode{host: &host{t: t}}
	for _, c := range []struct {
		name     string
		from, to *Store
	}{
		{"groups", newStore(), NewStoreWithGroups()},
		{"pods", NewStoreWithGroups(), NewStore()},
	} {
		n.setPolicy(c.from, "n1", "p", denyAll)
		c.from.ReplacePolicies([]*selection.Policy{c.from.Policy(types.NamespacedName{Namespace: "n1", Name: "p"})})
		if c.from.published != nil {
			c.from.ReplaceGroups(nil)
		}
		stored := &values{content: map[string][]byte{}}
		c.from.follow()
		(&Checkpoint{Store: c.from, Put: stored.put}).write()
		if len(stored.content) < 2 {
			t.Fatalf("%s: stored %d values", c.name, len(stored.content))
		}
		if err := (&Checkpoint{Store: c.to, Put: stored.put}).Restore(stored.content); err != nil {
			t.Fatal(err)
		}
		if c.to.PolicyNumber() != 0 || len(stored.content) != 0 {
			t.Errorf("%s: restored %d policies, %d values stay", c.name, c.to.PolicyNumber(), len(stored.content))
		}
	}
}
