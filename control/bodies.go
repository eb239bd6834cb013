package control

import (
	"context"
	"net/http"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// bodyReadTimeout is how long the body of a request may take to come, as long as the
// library lets a request live. The library itself waits for ever, even for the rest
// of one that it has refused.
const bodyReadTimeout = time.Minute

type bodyControllerKey struct{}

// withBodyReadTimeout cuts off who sends a body too slowly, known or not. A connection that
// is taken over has no such bound any more.
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

// withoutProxyBodyTimeout lets who may send something through to a pod, a service or a node
// take as long as those like.
func withoutProxyBodyTimeout(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, bound := r.Context().Value(bodyControllerKey{}).(*http.ResponseController)
		if info, ok := apirequest.RequestInfoFrom(r.Context()); bound && ok && info.Subresource == "proxy" {
			_ = c.SetReadDeadline(time.Time{}) // it could be set
		}
		next.ServeHTTP(w, r)
	})
}
