package nodeapi

import (
	"context"
	"net/http"
)

// Version tells what a program is and, from the agent, what it works with.
type Version struct {
	Version    string `json:"version"`              // of berth
	Commit     string `json:"commit,omitempty"`     // git commit it was built from
	Kubernetes string `json:"kubernetes,omitempty"` // version of the Kubernetes API types in use
	Go         string `json:"go"`                   // of the toolchain
	Platform   string `json:"platform"`             // linux/amd64
	Runtime    string `json:"runtime,omitempty"`    // name and version of the container runtime; empty: not connected
	CRI        string `json:"cri,omitempty"`        // version of the runtime's CRI
}

func (s *server) version(w http.ResponseWriter, r *http.Request) {
	v, err := s.h.Version(r.Context())
	reply(w, v, err)
}

// Version asks what the agent is.
func (c *Client) Version(ctx context.Context) (Version, error) {
	return fetch[Version](ctx, c, question{method: http.MethodGet, path: "/v1/version"})
}
