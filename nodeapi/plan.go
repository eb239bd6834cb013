package nodeapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxManifest bounds a manifest sent to be planned: 3 MiB, as what an API
// server takes at most.
const maxManifest = 3 << 20

// PlanResult says what would be done for a manifest.
type PlanResult struct {
	Pods     []PodPlan `json:"pods"`
	Warnings []Warning `json:"warnings,omitempty"`
}

// PodPlan says what would be done for one pod.
type PodPlan struct {
	Namespace       string      `json:"namespace"`
	Name            string      `json:"name"`
	Change          Change      `json:"change"`
	Rejection       string      `json:"verdict,omitempty"` // what stage admit would say if not yes, with its numbers
	ResizeRejection string      `json:"resize,omitempty"`  // why the pod would keep the CPU and memory that it has: Deferred or Infeasible, and the numbers
	Stages          []StagePlan `json:"stages"`
	Reasons         []Reason    `json:"reasons,omitempty"`
}

// Change is what a manifest means for the node.
type Change string

const (
	Create    Change = "create"  // no such pod is here
	Update    Change = "update"  // the pod is edited in place
	Resize    Change = "resize"  // likewise, in its CPU and memory alone
	Replace   Change = "replace" // the pod ends and a new one takes its place
	Unchanged Change = "keep"    // nothing changes
)

// StagePlan holds the actions of one stage.
type StagePlan struct {
	Stage   string          `json:"stage"` // ending (of the pod that is replaced), configure, cleanup, build-run
	Actions []PlannedAction `json:"actions"`
}

// PlannedAction is one thing that would be done.
type PlannedAction struct {
	Action string `json:"action"`           // RunSandbox, PullImage, …
	Target string `json:"on,omitempty"`     // container, volume, … ; empty: the pod
	Detail string `json:"detail,omitempty"` // the image, the grace, …
	Sync   int    `json:"pass,omitempty"`   // when it would be its turn: 1 is at once; 0: not known
}

// Reason is one decision in words.
type Reason struct {
	Code   string    `json:"code"`             // CamelCase, as an event reason where Kubernetes has one
	Target string    `json:"on,omitempty"`     // container, volume or image; empty: the pod
	Detail string    `json:"detail,omitempty"` // one sentence
	Until  time.Time `json:"until,omitzero"`   // when it ends by itself; zero: when something changes
}

func (s *server) plan(w http.ResponseWriter, r *http.Request) {
	manifest, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxManifest))
	if err != nil {
		writeError(w, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("a manifest may have %d bytes", maxManifest)))
		return
	}
	p, err := s.h.Plan(r.Context(), manifest)
	reply(w, p, err)
}

// Plan asks what would be done for manifest, without doing it.
func (c *Client) Plan(ctx context.Context, manifest []byte) (PlanResult, error) {
	return fetch[PlanResult](ctx, c, question{method: http.MethodPost, path: "/v1/plan", body: manifest})
}
