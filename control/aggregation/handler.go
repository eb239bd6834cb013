package aggregation

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/kube-aggregator/pkg/apiserver/scheme"
)

const apisPath = "/apis"

// Serve forwards a request for an extension API server, and passes any other to next. It expects requests that are
// authenticated and authorized.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	s.handlerOf(r, next).ServeHTTP(w, r)
}

// Forwards reports whether a request goes to an extension API server.
func (s *Server) Forwards(r *http.Request) bool {
	return (*s.backends.Load())[groupVersionOf(r.URL.Path)] != nil
}

func (s *Server) handlerOf(r *http.Request, next http.Handler) http.Handler {
	all := *s.backends.Load()
	if len(all) == 0 {
		return next
	}
	path := strings.TrimSuffix(r.URL.Path, "/")
	if path == apisPath {
		return s.lists
	}
	if b := all[groupVersionOf(r.URL.Path)]; b != nil {
		return b
	}
	name, isGroup := strings.CutPrefix(path, apisPath+"/")
	if !isGroup || strings.Contains(name, "/") {
		return next
	}
	for gv := range all {
		if gv.Group == name {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serveGroup(w, r, name) })
		}
	}
	return next
}

// groupVersionOf returns the group version that a path belongs to. It is empty for the path of a group. The path /api
// belongs to the version v1 of the group without a name.
func groupVersionOf(path string) schema.GroupVersion {
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return schema.GroupVersion{Version: "v1"}
	}
	rest, ok := strings.CutPrefix(path, apisPath+"/")
	if !ok {
		return schema.GroupVersion{}
	}
	group, rest, _ := strings.Cut(rest, "/")
	version, _, _ := strings.Cut(rest, "/")
	if group == "" || version == "" {
		return schema.GroupVersion{}
	}
	return schema.GroupVersion{Group: group, Version: version}
}

// serveGroups serves the list of all groups.
func (s *Server) serveGroups(w http.ResponseWriter, r *http.Request) {
	groups, err := s.allGroups(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{},
		w, r, http.StatusOK, &metav1.APIGroupList{Groups: groups}, false)
}

// serveGroup serves one group.
func (s *Server) serveGroup(w http.ResponseWriter, r *http.Request, name string) {
	groups, err := s.allGroups(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name })
	if i < 0 { // removed in the meantime
		http.NotFound(w, r)
		return
	}
	discovery.NewAPIGroupHandler(scheme.Codecs, groups[i]).ServeHTTP(w, r)
}

// allGroups returns the groups of the server with those of extension API servers.
func (s *Server) allGroups(r *http.Request) ([]metav1.APIGroup, error) {
	groups, err := s.groups.Groups(r.Context(), r)
	if err != nil {
		return nil, err //nolint:wrapcheck // does not fail
	}
	all, err := s.apiServices().Lister().List(labels.Everything())
	if err != nil {
		return nil, err //nolint:wrapcheck // does not fail
	}
	return withRemoteGroups(groups, all), nil
}

// withRemoteGroups adds the group versions of APIServices with a Service, by priority. The versions of an existing
// group stay preferred.
func withRemoteGroups(groups []metav1.APIGroup, all []*apiregistrationv1.APIService) []metav1.APIGroup {
	all = slices.DeleteFunc(slices.Clone(all), func(in *apiregistrationv1.APIService) bool {
		return in.Spec.Service == nil || in.Spec.Group == ""
	})
	for _, versions := range helper.SortedByGroupAndVersion(all) {
		name := versions[0].Spec.Group
		i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, metav1.APIGroup{Name: name})
		}
		group := &groups[i]
		group.Versions = slices.Clone(group.Versions)
		for _, in := range versions {
			version := metav1.GroupVersionForDiscovery{
				GroupVersion: name + "/" + in.Spec.Version, Version: in.Spec.Version}
			if !slices.Contains(group.Versions, version) {
				group.Versions = append(group.Versions, version)
			}
		}
		if group.PreferredVersion.Version == "" {
			group.PreferredVersion = group.Versions[0]
		}
	}
	return groups
}
