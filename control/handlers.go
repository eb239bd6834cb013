package control

import (
	"context"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"berth/control/controllers"
)

// handlers returns the library's handler chain with the handlers of this package.
func (s *Server) handlers(api http.Handler, c *genericapiserver.Config) http.Handler {
	api = s.withoutProxyBodyTimeout(s.withAggregation(s.withStorageQuota(api)))
	chain := s.access.attempts.Handler(genericapiserver.DefaultBuildHandlerChain(api, c))
	return withBodyReadTimeout(s.withUI(chain))
}

// withStorageQuota rejects writes while the store is over its quota or its file system is almost
// full. Deletes pass, because they free space. These pass too: writes that complete a delete,
// requests that store nothing, and lease renewals, because the pods of a node without heartbeat
// would be evicted.
func (s *Server) withStorageQuota(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if s.member == nil || !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, r)
			return
		}
		switch {
		case info.Verb != "create" && info.Verb != "update" && info.Verb != "patch",
			exemptFromQuota(info),
			info.Verb == "patch" && isLoopbackRequest(r):
		default:
			if err := s.member.CheckSpace(); err != nil {
				status := &apierrors.StatusError{ErrStatus: metav1.Status{
					Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
					Message: err.Error(),
				}}
				responsewriters.ErrorNegotiated(
					status,
					s.Scheme.Codecs,
					schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion},
					w,
					r,
				)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isLoopbackRequest reports whether a request comes from the server itself or from its garbage
// collector. Their patches hardly change the size of an object: the garbage collector removes
// finalizers and owner references from deleted objects.
func isLoopbackRequest(r *http.Request) bool {
	u, ok := apirequest.UserFrom(r.Context())
	if !ok {
		return false
	}
	return u.GetName() == controllerUser(controllers.GarbageCollector).GetName() ||
		u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// exemptFromQuota reports whether a write passes regardless of the quota: it stores nothing,
// replaces something small, or completes a delete.
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
		case "pods/exec",
			"pods/attach",
			"pods/portforward",
			"pods/proxy",
			"services/proxy",
			"nodes/proxy",
			"serviceaccounts/token",
			"pods/eviction",
			"pods/status",
			"nodes/status",
			"namespaces/finalize":
			return true
		}
	}
	return false
}

// bodyReadTimeout limits the time to read a request body. It equals the request timeout of the API
// server library, which itself never stops reading a body, even that of a rejected request.
const bodyReadTimeout = time.Minute

type bodyControllerKey struct{}

// withBodyReadTimeout sets a read deadline for request bodies, also for unauthenticated requests. A
// hijacked connection has no deadline.
func withBodyReadTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			c := http.NewResponseController(w)
			if c.SetReadDeadline(time.Now().Add(bodyReadTimeout)) == nil {
				r = r.WithContext(context.WithValue(r.Context(), bodyControllerKey{}, c))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// withAggregation forwards the requests of extension API servers. The chain is built before the aggregation.
func (s *Server) withAggregation(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.aggregation.Serve(w, r, next)
	})
}

// withoutProxyBodyTimeout removes the read deadline from authorized requests that are proxied to a
// pod, a Service, a node or an extension API server.
func (s *Server) withoutProxyBodyTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, bound := r.Context().Value(bodyControllerKey{}).(*http.ResponseController)
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if bound && ok && (info.Subresource == "proxy" || s.aggregation.Forwards(r)) {
			_ = c.SetReadDeadline(time.Time{}) // cannot fail: it was set before
		}
		next.ServeHTTP(w, r)
	})
}
