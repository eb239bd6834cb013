package control

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// handlers is the library's chain with our own link at its end.
func (s *Server) handlers(api http.Handler, c *genericapiserver.Config) http.Handler {
	return withBodyReadTimeout(genericapiserver.DefaultBuildHandlerChain(withoutProxyBodyTimeout(s.withStorageQuota(api)), c))
}

// withStorageQuota refuses writes that the store has no room for. Deletes pass:
// they make room. So does what a delete needs to come to its end, what stores
// nothing, and a node's sign of life: without it its pods would be ended.
func (s *Server) withStorageQuota(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if s.member == nil || !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, r)
			return
		}
		switch {
		case info.Verb != "create" && info.Verb != "update" && info.Verb != "patch", exemptFromQuota(info), info.Verb == "patch" && isLoopbackRequest(r):
		default:
			if err := s.member.CheckSpace(); err != nil {
				status := &apierrors.StatusError{ErrStatus: metav1.Status{
					Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage", Message: err.Error(),
				}}
				responsewriters.ErrorNegotiated(status, s.Scheme.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopbackRequest tells a request of the server's own parts. What they patch stays about as big as
// it was: the garbage collector takes finalizers and owners from what is deleted.
func isLoopbackRequest(r *http.Request) bool {
	who, ok := apirequest.UserFrom(r.Context())
	return ok && who.GetName() == user.APIServerUser && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup)
}

// exemptFromQuota tells of a write whether it passes whatever room there is: it stores
// nothing, little that takes the place of what was there, or what a delete waits for.
func exemptFromQuota(info *apirequest.RequestInfo) bool {
	of := info.Resource
	if info.Subresource != "" {
		of += "/" + info.Subresource
	}
	switch info.APIGroup {
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	case "coordination.k8s.io":
		return of == "leases" && info.Verb != "create"
	case "":
		switch of {
		case "pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy", "serviceaccounts/token",
			"pods/eviction", "pods/status", "nodes/status", "namespaces/finalize":
			return true
		}
	}
	return false
}
