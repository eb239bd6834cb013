package nodeapi

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Timeline contains the actions executed for one pod.
type Timeline struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Now       time.Time `json:"now"`   // clock of the agent, used as the end of active spans
	Spans     []Span    `json:"spans"` // ordered by start
	// number of discarded spans between the start of the pod and the newest spans
	Dropped int `json:"dropped,omitempty"`
}

// SpanKind is the level of a span.
type SpanKind string

const (
	SpanStage  SpanKind = "stage"  // one of the five stages
	SpanAction SpanKind = "action" // an action of a stage
	SpanCall   SpanKind = "call"   // a call to the runtime, or another part of an action
)

// Span is a time interval spent on one operation.
type Span struct {
	ID     int       `json:"id"`               // from 1, unique in its timeline
	Parent int       `json:"parent,omitempty"` // ID of the parent span; 0: none
	Kind   SpanKind  `json:"kind"`
	Name   string    `json:"name"`             // prepare, RunSandbox, …
	Target string    `json:"target,omitempty"` // container, volume, … ; empty: the pod
	Start  time.Time `json:"start"`
	End    time.Time `json:"end,omitzero"`    // zero: in progress
	Cause  string    `json:"cause,omitempty"` // reason of the operation, or what it waited for
	Error  string    `json:"error,omitempty"` // the error of a failed operation
}

func (s *server) timeline(w http.ResponseWriter, r *http.Request) {
	t, err := s.h.Timeline(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, t, err)
}

// Timeline returns the actions executed for a pod.
func (c *Client) Timeline(ctx context.Context, namespace, name string) (Timeline, error) {
	return fetch[Timeline](ctx, c, request{method: http.MethodGet, path: podPath(namespace, name, "/timeline")})
}
