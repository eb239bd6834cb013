package nodeapi

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Timeline is what was done for one pod.
type Timeline struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Now       time.Time `json:"now"`               // of the agent, the end of what is still under way
	Spans     []Span    `json:"spans"`             // by start
	Dropped   int       `json:"dropped,omitempty"` // spans between the start and the newest that were not kept
}

// SpanKind tells the three layers of a timeline apart.
type SpanKind string

const (
	SpanStage  SpanKind = "stage"  // one of the five stages
	SpanAction SpanKind = "action" // an action of a stage
	SpanCall   SpanKind = "call"   // a call to the runtime, or other work of an action
)

// Span is a stretch of time spent on one thing.
type Span struct {
	ID     int       `json:"id"`               // from 1, unique in its timeline
	Parent int       `json:"parent,omitempty"` // ID of the span that it is part of; 0: none
	Kind   SpanKind  `json:"kind"`
	Name   string    `json:"name"`            // prepare, RunSandbox, …
	Target string    `json:"on,omitempty"`    // container, volume, … ; empty: the pod
	Start  time.Time `json:"start"`           //
	End    time.Time `json:"end,omitzero"`    // zero: under way
	Cause  string    `json:"cause,omitempty"` // why it was done or what it waited for
	Error  string    `json:"error,omitempty"` // how it failed
}

func (s *server) timeline(w http.ResponseWriter, r *http.Request) {
	t, err := s.h.Timeline(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, t, err)
}

// Timeline asks what was done for a pod.
func (c *Client) Timeline(ctx context.Context, namespace, name string) (Timeline, error) {
	return fetch[Timeline](ctx, c, question{method: http.MethodGet, path: podPath(namespace, name, "/timeline")})
}
