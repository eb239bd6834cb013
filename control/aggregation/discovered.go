package aggregation

import (
	"maps"
	"slices"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
)

// discovered passes on what discovery finds in extension API servers, and records it. It is safe for concurrent use.
type discovered struct {
	aggregated.ResourceManager

	// document returns the hash of the OpenAPI document of a group version, or nothing if there is none.
	document func(gv schema.GroupVersion) string
	changed  func() // called after a change of the resources

	mu       sync.Mutex
	versions map[schema.GroupVersion]discoveredVersion
}

// discoveredVersion is a group version as its server described it last.
type discoveredVersion struct {
	resources []metav1.APIResource
	document  string
}

func newDiscovered(in aggregated.ResourceManager, document func(schema.GroupVersion) string,
	changed func()) *discovered {
	return &discovered{ResourceManager: in, document: document, changed: changed,
		versions: map[schema.GroupVersion]discoveredVersion{}}
}

// AddGroupVersion publishes a group version. One whose server did not respond is published as stale, and its last
// resources stay recorded.
func (d *discovered) AddGroupVersion(group string, in apidiscoveryv2.APIVersionDiscovery) {
	d.ResourceManager.AddGroupVersion(group, in)
	if in.Freshness != apidiscoveryv2.DiscoveryFreshnessCurrent {
		return
	}
	gv := schema.GroupVersion{Group: group, Version: in.Version}
	one := discoveredVersion{resourcesOf(gv, in.Resources), d.document(gv)}
	d.mu.Lock()
	d.versions[gv] = one
	d.mu.Unlock()
	d.changed()
}

// RemoveGroupVersion withdraws a group version.
func (d *discovered) RemoveGroupVersion(gv metav1.GroupVersion) {
	d.ResourceManager.RemoveGroupVersion(gv)
	d.mu.Lock()
	delete(d.versions, schema.GroupVersion(gv))
	d.mu.Unlock()
	d.changed()
}

// all returns the recorded group versions.
func (d *discovered) all() map[schema.GroupVersion]discoveredVersion {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.versions)
}

// resourcesOf returns resources without their subresources.
func resourcesOf(gv schema.GroupVersion, in []apidiscoveryv2.APIResourceDiscovery) (out []metav1.APIResource) {
	for _, r := range in {
		if r.ResponseKind == nil {
			continue
		}
		one := metav1.APIResource{Name: r.Resource, SingularName: r.SingularResource, Kind: r.ResponseKind.Kind,
			Group: gv.Group, Version: gv.Version, Namespaced: r.Scope == apidiscoveryv2.ScopeNamespace, Verbs: r.Verbs}
		out = append(out, one)
	}
	return out
}

// RESTMapper returns the mapping of the kinds of extension API servers. It is a snapshot.
func (s *Server) RESTMapper() meta.RESTMapper {
	out := meta.NewDefaultRESTMapper(nil)
	for gv, one := range s.discovered.all() {
		for _, r := range one.resources {
			scope := meta.RESTScopeRoot
			if r.Namespaced {
				scope = meta.RESTScopeNamespace
			}
			out.AddSpecific(gv.WithKind(r.Kind), gv.WithResource(r.Name), gv.WithResource(r.SingularName), scope)
		}
	}
	return out
}

// updateKinds updates the kinds that controllers follow. Calls are serialized, so that the last one sets what is
// recorded then.
func (s *Server) updateKinds() {
	s.updating.Lock()
	defer s.updating.Unlock()
	s.kinds.Replace(collectable(s.discovered.all(), s.Reserved))
}

// collectable returns the resources that can be watched and deleted, each in its most stable version. The kinds of
// reserved groups belong to the server itself.
func collectable(versions map[schema.GroupVersion]discoveredVersion,
	reserved func(group string) bool) map[schema.GroupResource]metav1.APIResource {
	out := map[schema.GroupResource]metav1.APIResource{}
	for gv, one := range versions {
		if reserved(gv.Group) {
			continue
		}
		for _, r := range one.resources {
			of := schema.GroupResource{Group: gv.Group, Resource: r.Name}
			better := out[of].Version == "" || version.CompareKubeAwareVersionStrings(r.Version, out[of].Version) > 0
			if better && !slices.ContainsFunc([]string{"list", "watch", "get", "delete"}, func(verb string) bool {
				return !slices.Contains(r.Verbs, verb)
			}) {
				out[of] = r
			}
		}
	}
	return out
}
