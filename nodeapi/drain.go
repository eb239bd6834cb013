package nodeapi

import (
	"context"
	"net/http"
	"time"
)

// DrainResult is what ending the node's pods for a shutdown has come to.
type DrainResult struct {
	Pods          int           `json:"pods"`              // that were told to end
	NotTerminated []string      `json:"late,omitempty"`    // of them those that had not in their time, as namespace/name
	Duration      time.Duration `json:"took"`              // nanoseconds
	SkipReason    string        `json:"nothing,omitempty"` // why nothing was done
}

func (s *server) drain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := s.streaming(r) // as long as pods take
	defer cancel()
	d, err := s.h.Drain(ctx)
	reply(w, d, err)
}

// Drain ends the node's pods because the host goes down, and returns when they have
// ended or their time has.
func (c *Client) Drain(ctx context.Context) (DrainResult, error) {
	return fetch[DrainResult](ctx, c, question{method: http.MethodPost, path: "/v1/drain"})
}
