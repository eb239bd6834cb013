package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// TestDependencyGraphBlockedOn: only foreground deletion waits, and only for dependents with
// blockOwnerDeletion.
func TestDependencyGraphBlockedOn(t *testing.T) {
	t.Parallel()
	g := newDependencyGraph(func(string) {})
	own := func(uid types.UID, foreground, block bool, owners ...types.UID) {
		o := graphObject{uid: uid, deleting: foreground, foreground: foreground}
		for _, owner := range owners {
			o.owners = append(o.owners, metav1.OwnerReference{UID: owner, BlockOwnerDeletion: &block})
		}
		g.update(o)
	}
	own("a", true, true, "c", "d")
	own("b", true, true, "a")
	own("c", true, true, "b")
	own("d", true, true)
	own("free", true, false, "a")
	own("stays", false, true, "a")
	own("under", true, true, "stays", "free")
	own("itself", true, true, "itself")
	for _, r := range []struct {
		uid, other types.UID
		want       bool
	}{
		{"a", "b", true}, {"b", "a", true}, {"c", "a", true}, {"a", "c", true}, {"d", "c", true},
		{"b", "d", false}, {"a", "free", false}, {"a", "stays", true}, {"stays", "under", false}, {"a", "under", false},
		{"free", "under", true},
		{"itself", "itself", true}, {"unknown", "a", false},
	} {
		if got := g.blockedOn(r.uid, r.other); got != r.want {
			t.Errorf("blockedOn(%s, %s) = %v", r.uid, r.other, got)
		}
	}
}

// TestGraphFollowsKinds checks which objects are queued when a kind appears and when it is removed.
func TestGraphFollowsKinds(t *testing.T) {
	t.Parallel()
	queued := map[string]bool{}
	g := newDependencyGraph(func(key string) { queued[key] = true })
	gadgets := gcResource{schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}, true}
	configMaps := gcResource{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true}
	owner := metav1.OwnerReference{APIVersion: "example.com/v1beta1", Kind: "Gadget", UID: "gadget"}
	g.update(graphObject{uid: "gadget", resource: gadgets})
	g.update(graphObject{uid: "dependent", resource: configMaps, owners: []metav1.OwnerReference{owner}})
	g.update(graphObject{uid: "other", resource: configMaps})
	clear(queued)
	g.enqueueOwnedBy(schema.GroupKind{Group: "example.com", Kind: "Widget"})
	if len(queued) > 0 {
		t.Errorf("a kind that owns nothing: %v was queued", queued)
	}
	g.enqueueOwnedBy(schema.GroupKind{Group: "example.com", Kind: "Gadget"})
	if len(queued) != 1 || !queued[collectPrefix+"dependent"] {
		t.Errorf("a new kind: %v was queued, want the dependent", queued)
	}
	clear(queued)
	g.removeResource(gadgets.GroupResource())
	if _, known := g.get("gadget"); known || !queued[collectPrefix+"dependent"] || queued[collectPrefix+"other"] {
		t.Errorf("a removed kind: %v was queued, want the dependent", queued)
	}
}
