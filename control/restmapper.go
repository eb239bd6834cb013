package control

import (
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"berth/control/registry"
	"berth/control/scheme"
)

// restMapper maps the kinds that are served now. It needs no discovery and is never outdated.
type restMapper struct {
	builtIn    func() meta.RESTMapper
	custom     func() meta.RESTMapper
	aggregated func() meta.RESTMapper
}

var _ meta.RESTMapper = restMapper{}

func (a *Assembly) restMapper() meta.RESTMapper {
	return restMapper{
		builtIn:    sync.OnceValue(func() meta.RESTMapper { return builtInMapper(a.Kinds) }),
		custom:     func() meta.RESTMapper { return a.customResources.RESTMapper() },
		aggregated: func() meta.RESTMapper { return a.aggregation.RESTMapper() },
	}
}

// builtInMapper returns a mapper of the kinds of the table, of CustomResourceDefinitions and of APIServices.
func builtInMapper(kinds []*registry.Kind) meta.RESTMapper {
	out := meta.NewDefaultRESTMapper(scheme.GroupVersions())
	for _, k := range kinds {
		scope := meta.RESTScopeNamespace
		if k.ClusterScoped {
			scope = meta.RESTScopeRoot
		}
		for _, gv := range append([]schema.GroupVersion{k.GroupVersion}, k.OtherVersions...) {
			out.AddSpecific(gv.WithKind(k.Name()), gv.WithResource(k.Resource), gv.WithResource(k.Singular), scope)
		}
	}
	definitions := apiextensionsv1.SchemeGroupVersion
	out.AddSpecific(definitions.WithKind("CustomResourceDefinition"),
		definitions.WithResource("customresourcedefinitions"), definitions.WithResource("customresourcedefinition"),
		meta.RESTScopeRoot)
	services := apiregistrationv1.SchemeGroupVersion
	out.AddSpecific(services.WithKind("APIService"), services.WithResource("apiservices"),
		services.WithResource("apiservice"), meta.RESTScopeRoot)
	return out
}

func (m restMapper) all() meta.RESTMapper {
	return meta.MultiRESTMapper{m.builtIn(), m.custom(), m.aggregated()}
}

// KindFor returns the kind of a resource.
func (m restMapper) KindFor(of schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.all().KindFor(of)
}

// KindsFor returns the kinds of a resource.
func (m restMapper) KindsFor(of schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.all().KindsFor(of)
}

// ResourceFor completes a resource.
func (m restMapper) ResourceFor(of schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.all().ResourceFor(of)
}

// ResourcesFor completes a resource.
func (m restMapper) ResourcesFor(of schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.all().ResourcesFor(of)
}

// RESTMapping returns the resource of a kind.
func (m restMapper) RESTMapping(of schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.all().RESTMapping(of, versions...)
}

// RESTMappings returns the resources of a kind.
func (m restMapper) RESTMappings(of schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.all().RESTMappings(of, versions...)
}

// ResourceSingularizer returns the singular of a resource.
func (m restMapper) ResourceSingularizer(resource string) (string, error) {
	return m.all().ResourceSingularizer(resource)
}
