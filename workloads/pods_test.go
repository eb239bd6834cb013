package workloads

import (
	"reflect"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

func TestClaim(t *testing.T) {
	t.Parallel()
	kind := metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}
	deleted := metav1.NewTime(time.Unix(1, 0))
	controlledBy := func(uid types.UID) []metav1.OwnerReference {
		isController := true
		return []metav1.OwnerReference{
			{Kind: "Node", UID: "n"}, {Kind: "ReplicaSet", UID: uid, Controller: &isController},
		}
	}
	for name, c := range map[string]struct {
		refs              []metav1.OwnerReference
		matches, deleting bool
		ownerDeleting     bool
		owned             bool
		owners            []string // after the write; nil: no write
	}{
		"owned":                              {refs: controlledBy("set"), matches: true, owned: true},
		"owned and deleting":                 {refs: controlledBy("set"), matches: true, deleting: true, owned: true},
		"other controller":                   {refs: controlledBy("other"), matches: true},
		"orphan":                             {matches: true, owned: true, owners: []string{"set"}},
		"orphan of other labels":             {},
		"orphan that is deleting":            {matches: true, deleting: true},
		"orphan of a deleting owner":         {matches: true, ownerDeleting: true},
		"no longer selected":                 {refs: controlledBy("set"), owners: []string{"n"}},
		"no longer selected, deleting owner": {refs: controlledBy("set"), ownerDeleting: true},
	} {
		owner := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "set"}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", OwnerReferences: c.refs}}
		if c.matches {
			pod.Labels = map[string]string{"app": "web"}
		}
		if c.deleting {
			pod.DeletionTimestamp = &deleted
		}
		if c.ownerDeleting {
			owner.DeletionTimestamp = &deleted
		}
		before := pod.DeepCopy()
		owned, writes := Claim(owner, kind, labels.SelectorFromSet(labels.Set{"app": "web"}), []*corev1.Pod{pod})
		if (len(owned) == 1) != c.owned || (len(writes) == 1) != (c.owners != nil) {
			t.Errorf("%s: got %d owned and %d writes", name, len(owned), len(writes))
			continue
		}
		if !reflect.DeepEqual(pod, before) {
			t.Errorf("%s: the input was modified", name)
		}
		if c.owners == nil {
			continue
		}
		var owners []string
		for _, ref := range writes[0].Object.GetOwnerReferences() {
			owners = append(owners, string(ref.UID))
		}
		// Only an adoption depends on whether the owner still exists.
		if !slices.Equal(owners, c.owners) || writes[0].Verb != Patch || writes[0].VerifyOwner != c.owned {
			t.Errorf("%s: got owners %v, write %+v", name, owners, writes[0])
		}
	}
}

func TestAvailable(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	ready := func(at time.Time) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)},
		}}}
	}
	for name, c := range map[string]struct {
		pod       *corev1.Pod
		minimum   int32
		available bool
		at        time.Time
	}{
		"not ready":                   {&corev1.Pod{}, 0, false, time.Time{}},
		"ready":                       {ready(now), 0, true, time.Time{}},
		"ready for the minimum":       {ready(now.Add(-10 * time.Second)), 10, true, time.Time{}},
		"ready for less":              {ready(now.Add(-9 * time.Second)), 10, false, now.Add(time.Second)},
		"ready since an unknown time": {ready(time.Time{}), 10, false, time.Time{}},
	} {
		if available, at := Available(c.pod, c.minimum, now); available != c.available || !at.Equal(c.at) {
			t.Errorf("%s: got %v %v, want %v %v", name, available, at, c.available, c.at)
		}
	}
}
