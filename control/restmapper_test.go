package control

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/control/registry"
)

// TestRESTMapperOfBuiltInAndCustomKinds also checks that a kind that is defined later is known.
func TestRESTMapperOfBuiltInAndCustomKinds(t *testing.T) {
	t.Parallel()
	builtIn, custom := builtInMapper(registry.All()), meta.NewDefaultRESTMapper(nil)
	aggregated := meta.NewDefaultRESTMapper(nil)
	flunder := schema.GroupVersionKind{Group: "wardle.example.com", Version: "v1", Kind: "Flunder"}
	aggregated.Add(flunder, meta.RESTScopeNamespace)
	m := restMapper{func() meta.RESTMapper { return builtIn }, func() meta.RESTMapper { return custom },
		func() meta.RESTMapper { return aggregated }}
	gadget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}
	if _, err := m.RESTMapping(gadget.GroupKind(), "v1"); !meta.IsNoMatchError(err) {
		t.Errorf("undefined kind: got error %v, want no match", err)
	}
	custom.Add(gadget, meta.RESTScopeNamespace)
	for _, row := range []struct {
		kind     schema.GroupVersionKind
		resource string
		scope    meta.RESTScopeName
	}{
		{gadget, "gadgets", meta.RESTScopeNameNamespace},
		{flunder, "flunders", meta.RESTScopeNameNamespace},
		{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "configmaps", meta.RESTScopeNameNamespace},
		{schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "nodes", meta.RESTScopeNameRoot},
		{schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "HorizontalPodAutoscaler"},
			"horizontalpodautoscalers", meta.RESTScopeNameNamespace},
		{schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"},
			"horizontalpodautoscalers", meta.RESTScopeNameNamespace},
		{schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
			"customresourcedefinitions", meta.RESTScopeNameRoot},
	} {
		resource := row.kind.GroupVersion().WithResource(row.resource)
		mapping, err := m.RESTMapping(row.kind.GroupKind(), row.kind.Version)
		if err != nil || mapping.Resource != resource || mapping.Scope.Name() != row.scope {
			t.Errorf("%s: got %+v, error %v", row.kind, mapping, err)
		}
		if kinds, err := m.KindsFor(resource); err != nil || len(kinds) != 1 || kinds[0] != row.kind {
			t.Errorf("%s: got kinds %v, error %v", resource, kinds, err)
		}
	}
}
