package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
