package nodeapi

import (
	"context"
	"net/http"

	"berth/internal/cis"
)

// CheckReport reports whether this node can run pods.
type CheckReport struct {
	Items []CheckItem `json:"items"`
}

// CheckItem is the result of one check.
type CheckItem struct {
	Name      string `json:"name"` // runtime, cni, cgroups, sysctl net.ipv4.ip_forward, …
	OK        bool   `json:"ok"`
	Essential bool   `json:"essential,omitempty"` // a failure prevents pods from running; otherwise it is a warning
	Detail    string `json:"detail,omitempty"`    // what was found, with numbers
	Remedy    string `json:"remedy,omitempty"`    // what to do on failure
}

// Failed reports whether an essential check failed.
func (r CheckReport) Failed() bool {
	for _, it := range r.Items {
		if it.Essential && !it.OK {
			return true
		}
	}
	return false
}

func (s *server) check(w http.ResponseWriter, r *http.Request) {
	rep, err := s.h.Check(r.Context())
	reply(w, rep, err)
}

// Check checks whether the node can run pods.
func (c *Client) Check(ctx context.Context) (CheckReport, error) {
	return fetch[CheckReport](ctx, c, request{method: http.MethodGet, path: "/v1/check"})
}

func (s *server) cis(w http.ResponseWriter, r *http.Request) {
	rep, err := s.h.CIS(r.Context())
	reply(w, rep, err)
}

// CIS checks the node against the CIS Kubernetes Benchmark.
func (c *Client) CIS(ctx context.Context) (cis.Report, error) {
	return fetch[cis.Report](ctx, c, request{method: http.MethodGet, path: "/v1/cis"})
}
