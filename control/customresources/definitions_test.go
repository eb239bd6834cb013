package customresources

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// definition returns a definition of two versions, of which v2 is not served.
func definition(generation int64) *apiextensionsv1.CustomResourceDefinition {
	newSchema := func() *apiextensionsv1.CustomResourceValidation {
		return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", Description: fmt.Sprint("generation ", generation)}}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "gadgets.example.com", UID: "1", Generation: generation, ResourceVersion: fmt.Sprint(generation),
			Annotations: map[string]string{
				"kubectl.kubernetes.io/last-applied-configuration": "{}",
				apiextensionsv1.KubeAPIApprovedAnnotation:          "url"},
			ManagedFields: []metav1.ManagedFieldsEntry{{}},
		},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: newSchema(),
					Subresources: &apiextensionsv1.CustomResourceSubresources{
						Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
						Scale:  &apiextensionsv1.CustomResourceSubresourceScale{}}},
				{Name: "v1beta1", Served: true, Schema: newSchema()},
				{Name: "v2", Schema: newSchema()},
			},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			AcceptedNames: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "gadgets", Singular: "gadget", Kind: "Gadget", ShortNames: []string{"gd"}},
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}},
		},
	}
}

// TestNewDefinitionsHaveConditions stores a new definition as the server does and reads it back. Its list of
// conditions is empty and not null, which kubectl wait rejects.
func TestNewDefinitionsHaveConditions(t *testing.T) {
	t.Parallel()
	created := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsserver.Scheme.Convert(definition(1), created, nil); err != nil {
		t.Fatal(err)
	}
	strategy := createStrategy{customresourcedefinition.NewStrategy(apiextensionsserver.Scheme)}
	strategy.PrepareForCreate(t.Context(), created)
	served := apiextensionsserver.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion)
	stored := apiextensionsserver.Codecs.LegacyCodec(v1beta1.SchemeGroupVersion)
	data, err := apiruntime.Encode(stored, created)
	if err != nil {
		t.Fatal(err)
	}
	read, err := apiruntime.Decode(stored, data)
	if err != nil {
		t.Fatal(err)
	}
	out, err := apiruntime.Encode(served, read)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"conditions":[]`; !strings.Contains(string(out), want) {
		t.Errorf("new definition: got %s, want %s in it", out, want)
	}
}

// countingStore counts the reads of the stored definition.
type countingStore struct {
	stored *apiextensionsv1.CustomResourceDefinition
	reads  int
}

func (c *countingStore) Get(context.Context, string, *metav1.GetOptions) (apiruntime.Object, error) {
	c.reads++
	out := &apiextensions.CustomResourceDefinition{}
	return out, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(
		c.stored.DeepCopy(), out, nil)
}

// newTestDefinitions returns definitions with a store. put replaces the definition in the informer.
func newTestDefinitions(t *testing.T) (d *definitions, stored *countingStore, put func(int64)) {
	t.Helper()
	stored = &countingStore{}
	informer := externalversions.NewSharedInformerFactory(fake.NewClientset(), 0).Apiextensions().V1().
		CustomResourceDefinitions()
	d, err := newDefinitions(informer, stored)
	if err != nil {
		t.Fatal(err)
	}
	return d, stored, func(generation int64) {
		stored.stored = definition(generation)
		small, err := withoutSchemas(definition(generation))
		if err == nil {
			err = informer.Informer().GetIndexer().Update(small)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSchemasAreReadOnceWhileUsed checks that all users share the schemas of a generation, and that they
// are read again after they were dropped.
func TestSchemasAreReadOnceWhileUsed(t *testing.T) {
	t.Parallel()
	d, stored, put := newTestDefinitions(t)
	complete := func() *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		out, err := d.complete("gadgets.example.com")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	put(1)
	if d.inUse("1") {
		t.Error("in use before the first read")
	}
	first, second := complete(), complete()
	if first.Spec.Versions[1].Schema != second.Spec.Versions[1].Schema || stored.reads != 1 || !d.inUse("1") {
		t.Errorf("two users: %d reads, want one read and shared schemas", stored.reads)
	}
	if got := first.Spec.Versions[0].Schema.OpenAPIV3Schema.Description; got != "generation 1" {
		t.Errorf("got the schema of %s, want generation 1", got)
	}
	put(2)
	if got := complete().Spec.Versions[0].Schema.OpenAPIV3Schema.Description; got != "generation 2" {
		t.Errorf("after a change: got the schema of %s, want generation 2", got)
	}
	runtime.KeepAlive(first)
	runtime.KeepAlive(second)
	for deadline := time.Now().Add(time.Minute); d.inUse("1"); {
		if time.Now().After(deadline) {
			t.Fatal("the schemas stay in memory without users")
		}
		runtime.GC()
	}
	if complete(); stored.reads != 3 {
		t.Errorf("%d reads, want a third one after the schemas were dropped", stored.reads)
	}
}

// TestInformerKeepsNoSchemas checks what the informer keeps of a definition.
func TestInformerKeepsNoSchemas(t *testing.T) {
	t.Parallel()
	in := definition(1)
	obj, err := withoutSchemas(in)
	if err != nil {
		t.Fatal(err)
	}
	out := definitionOf(obj)
	for _, v := range out.Spec.Versions {
		if v.Schema != nil {
			t.Errorf("the schema of %s is kept", v.Name)
		}
	}
	if len(out.Annotations) != 1 || out.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] != "url" ||
		out.ManagedFields != nil {
		t.Errorf("kept metadata: %+v, want only the annotation of an approval", out.ObjectMeta)
	}
	if in.Spec.Versions[0].Schema == nil || len(in.Annotations) != 2 {
		t.Error("the argument was changed")
	}
}

// TestIdleStorageIsNotKept checks which storages the handler of custom resources keeps.
func TestIdleStorageIsNotKept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	u := uses{now: func() time.Time { return now }, byUID: map[types.UID]*use{}}
	u.begin("watched")
	u.begin("used")
	u.end("used")
	if !u.recent("watched") || !u.recent("used") || u.recent("never used") || u.removeIdle() {
		t.Error("just after the requests: wrong use")
	}
	now = now.Add(idleTimeout)
	if !u.recent("watched") || u.recent("used") || !u.removeIdle() || u.removeIdle() {
		t.Error("after the idle timeout: want only the watched one, and one removal")
	}
}

// TestDiscoveryListsServedVersions checks the versions and resources of a group.
func TestDiscoveryListsServedVersions(t *testing.T) {
	t.Parallel()
	d, _, put := newTestDefinitions(t)
	put(1)
	g := &groupDiscovery{definitions: d}
	group := g.group("example.com")
	if len(group.Versions) != 2 || group.PreferredVersion.Version != "v1" {
		t.Errorf("got %+v, want v1 and v1beta1", group)
	}
	var names []string
	for _, r := range g.resources(apiextensionsv1.SchemeGroupVersion) {
		names = append(names, r.Name)
	}
	for _, r := range g.resources(schema.GroupVersion{Group: "example.com", Version: "v1"}) {
		names = append(names, r.Group+"/"+r.Version+" "+r.Kind+" "+r.Name)
	}
	want := []string{"example.com/v1 Gadget gadgets", "example.com/v1 Gadget gadgets/status",
		"autoscaling/v1 Scale gadgets/scale"}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if g.handler("/apis/example.com/v2") != nil || g.handler("/apis/example.com/v1beta1") == nil {
		t.Error("want a handler for served versions only")
	}
}

// TestMetadataCodecIgnoresContent checks that only metadata is decoded, whatever the version.
func TestMetadataCodecIgnoresContent(t *testing.T) {
	t.Parallel()
	obj, kind, err := MetadataCodec{}.Decode([]byte(`{"apiVersion":"example.com/v3","kind":"Gadget","spec":[1],
		"metadata":{"name":"n","namespace":"ns","uid":"u","labels":{"a":"b"},"finalizers":["f"],
		"ownerReferences":[{"uid":"o"}],"deletionTimestamp":"2026-01-01T00:00:00Z"}}`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok || kind.Kind != "Gadget" || m.Name != "n" || m.Namespace != "ns" || m.UID != "u" ||
		len(m.Finalizers) != 1 || m.OwnerReferences[0].UID != "o" || m.DeletionTimestamp.IsZero() || m.Labels != nil {
		t.Errorf("got %v %+v", kind, obj)
	}
	if _, _, err := (MetadataCodec{}).Decode([]byte("{"), nil, nil); err == nil {
		t.Error("truncated object accepted")
	}
}
