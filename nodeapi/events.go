package nodeapi

import (
	"context"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
)

// EventsRequest says which events are asked for.
type EventsRequest struct {
	Namespace string // empty: all
	Pod       string // empty: all
}

func (s *server) events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	l, err := s.h.Events(r.Context(), EventsRequest{Namespace: q.Get("namespace"), Pod: q.Get("pod")})
	reply(w, l, err)
}

// Events asks for the events kept on this node, oldest first.
func (c *Client) Events(ctx context.Context, req EventsRequest) (*corev1.EventList, error) {
	return fetch[*corev1.EventList](ctx, c, question{method: http.MethodGet, path: "/v1/events",
		query: url.Values{"namespace": {req.Namespace}, "pod": {req.Pod}}})
}
