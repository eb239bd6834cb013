package localworkloads

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// compare orders keys by kind, namespace and name.
func (k key) compare(other key) int {
	if c := strings.Compare(k.kind, other.kind); c != 0 {
		return c
	}
	if c := strings.Compare(k.namespace, other.namespace); c != 0 {
		return c
	}
	return strings.Compare(k.name, other.name)
}

// sortedKeys is a set of keys in order.
type sortedKeys []key

// add adds a key unless it is in the set.
func (s *sortedKeys) add(k key) {
	if at, found := slices.BinarySearchFunc(*s, k, key.compare); !found {
		*s = slices.Insert(*s, at, k)
	}
}

// remove removes a key.
func (s *sortedKeys) remove(k key) {
	if at, found := slices.BinarySearchFunc(*s, k, key.compare); found {
		*s = slices.Delete(*s, at, at+1)
	}
}

// pop removes and returns the first key. The set must not be empty.
func (s *sortedKeys) pop() key {
	k := (*s)[0]
	*s = slices.Delete(*s, 0, 1)
	return k
}

// index finds objects by kind and namespace, and by owner.
type index struct {
	keys     sortedKeys
	children map[types.UID]sortedKeys // by UID of the controller
}

func newIndex() index { return index{children: map[types.UID]sortedKeys{}} }

// set replaces the object with a key. Either may be nil.
func (x *index) set(k key, old, next workloads.Object) {
	switch {
	case old == nil && next != nil:
		x.keys.add(k)
	case old != nil && next == nil:
		x.keys.remove(k)
	}
	was, is := controllerUID(old), controllerUID(next)
	if was == is {
		return
	}
	if was != "" {
		children := x.children[was]
		children.remove(k)
		if x.children[was] = children; len(children) == 0 {
			delete(x.children, was)
		}
	}
	if is != "" {
		children := x.children[is]
		children.add(k)
		x.children[is] = children
	}
}

// within returns the keys of a kind in a namespace, in order. An empty namespace means all.
func (x *index) within(kind, namespace string) []key {
	from, _ := slices.BinarySearchFunc(x.keys, key{kind, namespace, ""}, key.compare)
	to := from
	for to < len(x.keys) && x.keys[to].kind == kind && (namespace == "" || x.keys[to].namespace == namespace) {
		to++
	}
	return x.keys[from:to]
}

// controllerUID returns the UID of the controller of an object, or "".
func controllerUID(o workloads.Object) types.UID {
	if o == nil {
		return ""
	}
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil {
		return ""
	}
	return ref.UID
}
