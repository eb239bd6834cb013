package nodeapi

import (
	"context"
	"net/http"
)

// CheckReport says whether this node can run pods.
type CheckReport struct {
	Items []CheckItem `json:"items"`
}

// CheckItem is one thing that was looked at.
type CheckItem struct {
	Name      string `json:"name"`                // runtime, cni, cgroups, sysctl net.ipv4.ip_forward, …
	OK        bool   `json:"ok"`                  //
	Essential bool   `json:"essential,omitempty"` // without it no pod runs; else it is advice
	Detail    string `json:"detail,omitempty"`    // what was found, with numbers
	Remedy    string `json:"remedy,omitempty"`    // what to do if not OK
}

// Failed reports whether something essential is missing.
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

// Check asks whether the node can run pods.
func (c *Client) Check(ctx context.Context) (CheckReport, error) {
	return fetch[CheckReport](ctx, c, question{method: http.MethodGet, path: "/v1/check"})
}
