package nodeapi

import (
	"context"
	"net/http"
	"time"
)

// NodeSummary is the state of the node apart from its pods.
type NodeSummary struct {
	Name             string            `json:"name"`
	InvalidManifests []InvalidManifest `json:"invalidManifests,omitempty"`
	Warnings         []Warning         `json:"warnings,omitempty"`
}

// InvalidManifest is a manifest file that is not used in its current form.
type InvalidManifest struct {
	Path           string    `json:"path"`
	Line           int       `json:"line,omitempty"`           // counted from 1; 0: unknown
	Field          string    `json:"field,omitempty"`          // path of the field, such as spec.containers[0].image
	Message        string    `json:"message"`                  // the cause
	Since          time.Time `json:"since,omitzero"`           // when the problem was first detected
	LastValidInUse bool      `json:"lastValidInUse,omitempty"` // the last valid version is still in use
}

// Warning is a problem that does not stop anything.
type Warning struct {
	Object  string `json:"object,omitempty"` // pod/default/web, a file, or a configuration field
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

func (s *server) node(w http.ResponseWriter, r *http.Request) {
	n, err := s.h.Node(r.Context())
	reply(w, n, err)
}

// Node returns the summary of the node.
func (c *Client) Node(ctx context.Context) (NodeSummary, error) {
	return fetch[NodeSummary](ctx, c, request{method: http.MethodGet, path: "/v1/node"})
}
