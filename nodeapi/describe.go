package nodeapi

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Description is one pod with everything that the agent knows about it.
type Description struct {
	Pod      *corev1.Pod    `json:"pod"`
	Events   []corev1.Event `json:"events,omitempty"`   // oldest first
	Source   string         `json:"source,omitempty"`   // manifest file, or server
	Warnings []Warning      `json:"warnings,omitempty"` // unsupported fields and the like
	// NextRetry is the time of the next image pull or start of each container in back-off, by
	// container name.
	NextRetry map[string]time.Time `json:"nextRetry,omitempty"`
}

func (s *server) describe(w http.ResponseWriter, r *http.Request) {
	d, err := s.h.Describe(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, d, err)
}

// Describe returns everything that is known about a pod.
func (c *Client) Describe(ctx context.Context, namespace, name string) (Description, error) {
	return fetch[Description](ctx, c, request{method: http.MethodGet, path: podPath(namespace, name, "/describe")})
}
