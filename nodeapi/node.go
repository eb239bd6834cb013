package nodeapi

import (
	"context"
	"net/http"
	"time"
)

// NodeSummary tells about the node what is no pod.
type NodeSummary struct {
	Name             string            `json:"name"`
	InvalidManifests []InvalidManifest `json:"badFiles,omitempty"`
	Warnings         []Warning         `json:"warnings,omitempty"`
}

// InvalidManifest is a manifest file that could not be used as it is.
type InvalidManifest struct {
	Path           string    `json:"path"`
	Line           int       `json:"line,omitempty"`     // counted from 1; 0: not known
	Field          string    `json:"field,omitempty"`    // path of the field, as spec.containers[0].image
	Message        string    `json:"message"`            // what is wrong with it
	Since          time.Time `json:"since,omitzero"`     // when it was first seen so
	LastValidInUse bool      `json:"lastGood,omitempty"` // its last good version is still in force
}

// Warning is something the user should know and that stops nothing.
type Warning struct {
	Object  string `json:"object,omitempty"` // as pod/default/web, a file, or a field of the configuration
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

func (s *server) node(w http.ResponseWriter, r *http.Request) {
	n, err := s.h.Node(r.Context())
	reply(w, n, err)
}

// Node asks for the summary of the node.
func (c *Client) Node(ctx context.Context) (NodeSummary, error) {
	return fetch[NodeSummary](ctx, c, question{method: http.MethodGet, path: "/v1/node"})
}
