package nodeapi

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// PodProbes are the probes of one pod.
type PodProbes struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Now       time.Time `json:"now"` // clock of the agent
	Probes    []Probe   `json:"probes"`
}

// ProbeState is the state of a probe.
type ProbeState string

const (
	ProbePassing ProbeState = "passing"
	ProbeFailing ProbeState = "failing" // failureThreshold reached
	ProbePending ProbeState = "pending" // no threshold reached yet
	ProbeDone    ProbeState = "done"    // a startup probe that has succeeded and no longer runs
	ProbeWaiting ProbeState = "waiting" // not running, see WaitingFor
)

// Probe is one probe of one container.
type Probe struct {
	Container           string     `json:"container"`
	ContainerID         string     `json:"containerID,omitempty"`
	Kind                string     `json:"kind"` // startup, readiness or liveness
	Action              string     `json:"action"`
	InitialDelaySeconds int32      `json:"initialDelaySeconds"`
	TimeoutSeconds      int32      `json:"timeoutSeconds"`
	PeriodSeconds       int32      `json:"periodSeconds"`
	SuccessThreshold    int32      `json:"successThreshold"`
	FailureThreshold    int32      `json:"failureThreshold"`
	State               ProbeState `json:"state"`
	WaitingFor          string     `json:"waitingFor,omitempty"`    // what the probe is waiting for
	Successes           int32      `json:"successes,omitempty"`     // consecutive, at most the threshold
	Failures            int32      `json:"failures,omitempty"`      // consecutive, at most the threshold
	NextRun             time.Time  `json:"nextRun,omitzero"`        // next run; zero: unknown, or a run is in progress
	Running             bool       `json:"running,omitempty"`       // a run is in progress
	MissedPeriods       int64      `json:"missedPeriods,omitempty"` // skipped because the node was overloaded
	Recent              []ProbeRun `json:"recent,omitempty"`        // newest first
}

// ProbeRun is one run of a probe.
type ProbeRun struct {
	At                    time.Time `json:"at"`
	Seconds               float64   `json:"seconds"`
	Result                string    `json:"result"`                // success, warning, failure or unknown
	CountsTowardThreshold bool      `json:"countsTowardThreshold"` // the result counts toward a threshold
	Output                string    `json:"output,omitempty"`
}

func (s *server) probes(w http.ResponseWriter, r *http.Request) {
	p, err := s.h.Probes(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, p, err)
}

// Probes returns the probes of a pod with their recent results.
func (c *Client) Probes(ctx context.Context, namespace, name string) (PodProbes, error) {
	return fetch[PodProbes](ctx, c, request{method: http.MethodGet, path: podPath(namespace, name, "/probes")})
}
