package nodeapi

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Description is one pod with what the agent knows about it.
type Description struct {
	Pod      *corev1.Pod    `json:"pod"`
	Events   []corev1.Event `json:"events,omitempty"`   // oldest first
	Source   string         `json:"source,omitempty"`   // the manifest file or the server it came from
	Warnings []Warning      `json:"warnings,omitempty"` // fields that are not honoured, …
	// NextRetry is by container when its image is pulled or it is started next, of those that are held back.
	NextRetry map[string]time.Time `json:"nextTry,omitempty"`
}

func (s *server) describe(w http.ResponseWriter, r *http.Request) {
	d, err := s.h.Describe(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, d, err)
}

// Describe asks for all that is known about a pod.
func (c *Client) Describe(ctx context.Context, namespace, name string) (Description, error) {
	return fetch[Description](ctx, c, question{method: http.MethodGet, path: podPath(namespace, name, "/describe")})
}
