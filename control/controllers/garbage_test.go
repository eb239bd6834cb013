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

// TestAnOwnerInAnotherNamespaceOwnsNothing: an object that has no other goes, one
// that has keeps that alone, and of one in no namespace nothing is said.
func TestAnOwnerInAnotherNamespaceOwnsNothing(t *testing.T) {
	t.Parallel()
	configs := gcResource{corev1.SchemeGroupVersion.WithResource("configmaps"), true}
	nodes := gcResource{corev1.SchemeGroupVersion.WithResource("nodes"), false}
	of := map[string]gcResource{"ConfigMap": configs, "Node": nodes}
	thing := func(kind, namespace, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kind},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), OwnerReferences: owners},
		}
	}
	owned := func(kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID(name)}
	}
	things := []*metav1.PartialObjectMetadata{
		thing("ConfigMap", "here", "owner"), thing("ConfigMap", "there", "other"), thing("Node", "", "node"),
		thing("ConfigMap", "here", "beside", owned("ConfigMap", "owner")),
		thing("ConfigMap", "there", "away", owned("ConfigMap", "owner")),
		thing("ConfigMap", "there", "both", owned("ConfigMap", "owner"), owned("ConfigMap", "other")),
		thing("ConfigMap", "there", "of-node", owned("Node", "node")),
		thing("Node", "", "nowhere", owned("ConfigMap", "owner")),
	}
	g, asked := collecting(t, things, of)
	for _, key := range *asked {
		if _, err := g.sync(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	got := map[string]int{}
	for _, o := range things {
		live, err := g.client(newGraphObject(of[o.Kind], o)).Get(t.Context(), o.Name, metav1.GetOptions{})
		if ignoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if err == nil {
			got[o.Name] = len(live.OwnerReferences)
		}
	}
	for name, owners := range map[string]int{"owner": 0, "other": 0, "node": 0, "beside": 1, "both": 1, "of-node": 1, "nowhere": 1} {
		if have, kept := got[name]; !kept || have != owners {
			t.Errorf("%s is kept: %v, with %d owners; want %d", name, kept, have, owners)
		}
	}
	if _, kept := got["away"]; kept {
		t.Error("an object whose only owner is in another namespace is kept")
	}
	if slices.Contains(*asked, collectPrefix+"beside") {
		t.Errorf("asked to judge an object whose owner is there: %s", strings.Join(*asked, ", "))
	}
}

// collecting is a collector that knows the objects, and what its graph has asked for.
func collecting(t *testing.T, objects []*metav1.PartialObjectMetadata, of map[string]gcResource) (*garbageCollector, *[]string) {
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
	var asked []string
	g := &garbageCollector{
		Config: Config{Metadata: client, Log: slog.New(slog.DiscardHandler)}, kinds: map[schema.GroupKind]gcResource{},
		graph: newDependencyGraph(func(key string) { asked = append(asked, key) }),
	}
	for kind, at := range of {
		g.kinds[schema.GroupKind{Kind: kind}] = at
	}
	for _, o := range objects {
		g.graph.update(newGraphObject(of[o.Kind], o))
	}
	return g, &asked
}
