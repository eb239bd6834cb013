package nodeapi

import (
	"context"
	"net/http"
)

// Version is the version of a program and, for the agent, of its environment.
type Version struct {
	Version    string `json:"version"`              // of berth
	Commit     string `json:"commit,omitempty"`     // git commit it was built from
	Kubernetes string `json:"kubernetes,omitempty"` // version of the Kubernetes API types
	Go         string `json:"go"`                   // version of the Go toolchain
	Platform   string `json:"platform"`             // linux/amd64
	Runtime    string `json:"runtime,omitempty"`    // name and version of the container runtime; empty: not connected
	CRI        string `json:"cri,omitempty"`        // version of the runtime's CRI
}

func (s *server) version(w http.ResponseWriter, r *http.Request) {
	v, err := s.h.Version(r.Context())
	reply(w, v, err)
}

// Version returns the version of the agent.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return fetch[Version](ctx, c, request{method: http.MethodGet, path: "/v1/version"})
}
