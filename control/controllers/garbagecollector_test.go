package controllers

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
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
		graph: newDependencyGraph(func(key string) { queued = append(queued, key) }),
	}
	for kind, at := range of {
		g.kinds[schema.GroupKind{Kind: kind}] = at
	}
	for _, o := range objects {
		g.graph.update(newGraphObject(of[o.Kind], o))
	}
	return g, &queued
}
