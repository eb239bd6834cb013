package nodeapi

import (
	"context"
	"net/http"
	"time"
)

// DrainResult is the result of a graceful node shutdown.
type DrainResult struct {
	Pods int `json:"pods"` // number of pods that were terminated
	// pods still running after their grace period, as namespace/name
	NotTerminated []string      `json:"notTerminated,omitempty"`
	Duration      time.Duration `json:"duration"`             // nanoseconds
	SkipReason    string        `json:"skipReason,omitempty"` // why no pod was terminated
}

func (s *server) drain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := s.streaming(r) // takes as long as the pods need
	defer cancel()
	d, err := s.h.Drain(ctx)
	reply(w, d, err)
}

// Drain terminates the node's pods because the host is shutting down. It returns when the pods have
// terminated or their grace period is over.
func (c *Client) Drain(ctx context.Context) (DrainResult, error) {
	return fetch[DrainResult](ctx, c, request{method: http.MethodPost, path: "/v1/drain"})
}
