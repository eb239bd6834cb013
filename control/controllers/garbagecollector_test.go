package controllers

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/lru"
)

// TestGarbageCollectorIgnoresOwnerInOtherNamespace: an object without another owner is deleted, and
// one with another owner keeps only that one. A cluster-scoped object with a namespaced owner is
// not changed.
func TestGarbageCollectorIgnoresOwnerInOtherNamespace(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	nodes := gcResource{corev1.SchemeGroupVersion.WithResource("nodes"), false}
	of := map[string]gcResource{"ConfigMap": configs, "Node": nodes}
	newObject := func(kind, namespace, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
				OwnerReferences: owners},
		}
	}
	owned := func(kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID(name)}
	}
	objects := []*metav1.PartialObjectMetadata{
		newObject("ConfigMap", "here", "owner"), newObject("ConfigMap", "there", "other"),
		newObject("Node", "", "node"),
		newObject("ConfigMap", "here", "same-ns", owned("ConfigMap", "owner")),
		newObject("ConfigMap", "there", "away", owned("ConfigMap", "owner")),
		newObject("ConfigMap", "there", "both", owned("ConfigMap", "owner"), owned("ConfigMap", "other")),
		newObject("ConfigMap", "there", "of-node", owned("Node", "node")),
		newObject("Node", "", "nowhere", owned("ConfigMap", "owner")),
	}
	g, queued := newTestCollector(t, objects, of)
	for _, key := range *queued {
		if _, err := g.sync(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	got := map[string]int{}
	for _, o := range objects {
		live, err := g.client(newGraphObject(of[o.Kind], o)).Get(t.Context(), o.Name, metav1.GetOptions{})
		if ignoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if err == nil {
			got[o.Name] = len(live.OwnerReferences)
		}
	}
	for name, owners := range map[string]int{"owner": 0, "other": 0, "node": 0, "same-ns": 1, "both": 1, "of-node": 1,
		"nowhere": 1} {
		if have, exists := got[name]; !exists || have != owners {
			t.Errorf("%s: exists %v with %d owners, want %d", name, exists, have, owners)
		}
	}
	if _, exists := got["away"]; exists {
		t.Error("an object whose only owner is in another namespace was not deleted")
	}
	if slices.Contains(*queued, collectPrefix+"same-ns") {
		t.Errorf("queued an object whose owner exists: %s", strings.Join(*queued, ", "))
	}
}

// TestGarbageCollectorRemembersAbsentOwners: the dependents of a deleted owner are deleted after one request for the
// owner. A dependent in another namespace, which could have an owner of that name, needs another request.
func TestGarbageCollectorRemembersAbsentOwners(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	var objects []*metav1.PartialObjectMetadata
	for _, at := range []string{"here/a", "here/b", "here/c", "there/d"} {
		namespace, name, _ := strings.Cut(at, "/")
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name),
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}},
		})
	}
	deleting := objects[0].DeepCopy() // an earlier request has deleted it
	deleting.Name, deleting.UID, deleting.DeletionTimestamp = "e", "e", new(metav1.Now())
	deleting.Finalizers = []string{"example.com/keep"}
	g, _ := newTestCollector(t, append(objects, deleting), map[string]gcResource{"ConfigMap": configs})
	if _, err := g.sync(t.Context(), collectPrefix+"e"); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if _, err := g.sync(t.Context(), collectPrefix+o.Name); err != nil {
			t.Fatal(err)
		}
	}
	client, ok := g.Metadata.(*metadatafake.FakeMetadataClient)
	if !ok {
		t.Fatalf("got a %T", g.Metadata)
	}
	if n := len(client.Actions()); n != 2*len(objects)+2 {
		t.Errorf("got %d requests, want two for each object and one for the owner in each namespace", n)
	}
	reads, deletions := 0, 0
	for _, a := range client.Actions() {
		if get, is := a.(clienttesting.GetAction); is && a.GetVerb() == "get" && get.GetName() == "gone" {
			reads++
		}
		if a.GetVerb() == "delete" {
			deletions++
		}
	}
	if reads != 2 || deletions != len(objects) {
		t.Errorf("got %d reads of the owner and %d deletions, want 2 and %d", reads, deletions, len(objects))
	}
}

// TestGarbageCollectorDeletesObservedVersion: a dependent without an owner is deleted without being read, unless it has
// changed since it was observed or a finalizer says what becomes of its own dependents.
func TestGarbageCollectorDeletesObservedVersion(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	for name, row := range map[string]struct {
		changed   bool // a request with the observed version conflicts
		finalizer string
		want      string
	}{
		"unchanged":            {want: "get gone, delete a"},
		"changed":              {changed: true, want: "get gone, delete a, get a, delete a"},
		"orphans dependents":   {finalizer: metav1.FinalizerOrphanDependents, want: "get a, get gone, delete a"},
		"waits for dependents": {finalizer: metav1.FinalizerDeleteDependents, want: "get a, get gone, delete a"},
		"another finalizer":    {finalizer: "example.com/x", want: "get gone, delete a"},
	} {
		o := &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "here", Name: "a", UID: "a", ResourceVersion: "7",
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}},
		}
		if row.finalizer != "" {
			o.Finalizers = []string{row.finalizer}
		}
		g, _ := newTestCollector(t, []*metav1.PartialObjectMetadata{o}, map[string]gcResource{"ConfigMap": configs})
		client, ok := g.Metadata.(*metadatafake.FakeMetadataClient)
		if !ok {
			t.Fatalf("got a %T", g.Metadata)
		}
		client.PrependReactor("delete", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			conflict := row.changed
			row.changed = false
			return conflict, nil, apierrors.NewConflict(corev1.Resource("configmaps"), "a", errors.New("changed"))
		})
		if _, err := g.sync(t.Context(), collectPrefix+"a"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, a := range client.Actions() {
			if named, is := a.(interface{ GetName() string }); is {
				got = append(got, a.GetVerb()+" "+named.GetName())
			}
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("%s: got requests %v, want %s", name, got, row.want)
		}
	}
}

// newTestCollector returns a collector that knows the objects, and the keys that its graph has
// queued.
func newTestCollector(t *testing.T, objects []*metav1.PartialObjectMetadata,
	of map[string]gcResource) (*garbageCollector, *[]string) {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	stored := make([]runtime.Object, 0, len(objects))
	for _, o := range objects {
		stored = append(stored, o)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme, stored...)
	var queued []string
	g := &garbageCollector{
		Config: Config{Metadata: client, Log: slog.New(slog.DiscardHandler)}, kinds: map[schema.GroupKind]gcResource{},
		graph: newDependencyGraph(func(key string) { queued = append(queued, key) }), absent: lru.New(absentOwners),
	}
	for kind, at := range of {
		g.kinds[schema.GroupKind{Kind: kind}] = at
	}
	for _, o := range objects {
		g.graph.update(newGraphObject(of[o.Kind], o))
	}
	return g, &queued
}
