package nodeapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxManifest limits the size of a manifest to 3 MiB, the limit of an API server.
const maxManifest = 3 << 20

// PlanResult is what applying a manifest would do.
type PlanResult struct {
	Pods      []PodPlan      `json:"pods"`
	Workloads []WorkloadPlan `json:"workloads,omitempty"`
	Warnings  []Warning      `json:"warnings,omitempty"`
}

// PodPlan is what would be done for one pod.
type PodPlan struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Change    Change `json:"change"`
	// the reason of a rejection by admission, with numbers; empty: the pod would be admitted
	Rejection string `json:"rejection,omitempty"`
	// why the pod would keep its current CPU and memory: Deferred or Infeasible, with numbers
	ResizeRejection string      `json:"resizeRejection,omitempty"`
	Stages          []StagePlan `json:"stages"`
	Reasons         []Reason    `json:"reasons,omitempty"`
}

// Change is the effect of a manifest on a pod or a workload.
type Change string

const (
	Create    Change = "create"    // it does not exist
	Update    Change = "update"    // it is updated in place, the pods of a workload by its strategy
	Resize    Change = "resize"    // only CPU and memory of the pod are updated in place
	Replace   Change = "replace"   // it is deleted, with all its pods, and replaced by a new one
	Unchanged Change = "unchanged" // nothing changes
)

// StagePlan holds the actions of one stage.
type StagePlan struct {
	Stage   string          `json:"stage"` // termination (of the replaced pod), configure, cleanup, build-run
	Actions []PlannedAction `json:"actions"`
}

// PlannedAction is one action that would be executed.
type PlannedAction struct {
	Action string `json:"action"`           // RunSandbox, PullImage, …
	Target string `json:"target,omitempty"` // container, volume, …; empty: the pod
	Detail string `json:"detail,omitempty"` // the image, the grace, …
	Sync   int    `json:"sync,omitempty"`   // the sync in which the action would start, counted from 1; 0: unknown
}

// Reason is one decision as text.
type Reason struct {
	Code   string    `json:"code"`             // CamelCase: the event reason where Kubernetes has one
	Target string    `json:"target,omitempty"` // container, volume or image; empty: the pod
	Detail string    `json:"detail,omitempty"` // one sentence
	Until  time.Time `json:"until,omitzero"`   // when it expires; zero: it ends with a change of state
}

func (s *server) plan(w http.ResponseWriter, r *http.Request) {
	manifest, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxManifest))
	if err != nil {
		writeError(
			w,
			apierrors.NewRequestEntityTooLargeError(
				fmt.Sprintf("the manifest is too large: maximum %d bytes", maxManifest),
			),
		)
		return
	}
	p, err := s.h.Plan(r.Context(), manifest)
	reply(w, p, err)
}

// Plan returns what would be done for manifest, without doing it.
func (c *Client) Plan(ctx context.Context, manifest []byte) (PlanResult, error) {
	return fetch[PlanResult](ctx, c, request{method: http.MethodPost, path: "/v1/plan", body: manifest})
}
