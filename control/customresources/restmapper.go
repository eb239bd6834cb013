package customresources

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// RESTMapper returns a mapper of the kinds that are served now.
func (s *Server) RESTMapper() meta.RESTMapper {
	out := meta.NewDefaultRESTMapper(nil)
	for _, crd := range s.definitions.established() {
		names, scope := crd.Status.AcceptedNames, meta.RESTScopeRoot
		if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
			scope = meta.RESTScopeNamespace
		}
		for _, v := range crd.Spec.Versions {
			if gv := (schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}); v.Served {
				out.AddSpecific(gv.WithKind(names.Kind), gv.WithResource(names.Plural),
					gv.WithResource(names.Singular), scope)
			}
		}
	}
	return out
}
