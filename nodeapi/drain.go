package nodeapi

import (
	"context"
	"net/http"
	"time"
)

// Drained is what ending the node's pods for a shutdown has come to.
type Drained struct {
	Pods    int           `json:"pods"`              // that were told to end
	Late    []string      `json:"late,omitempty"`    // of them those that had not in their time, as namespace/name
	Took    time.Duration `json:"took"`              // nanoseconds
	Nothing string        `json:"nothing,omitempty"` // why nothing was done
}

func (s *server) drain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := s.streaming(r) // as long as pods take
	defer cancel()
	d, err := s.h.Drain(ctx)
	reply(w, d, err)
}

// Drain ends the node's pods because the host goes down, and returns when they have
// ended or their time has.
func (c *Client) Drain(ctx context.Context) (Drained, error) {
	return fetch[Drained](ctx, c, question{method: http.MethodPost, path: "/v1/drain"})
}
