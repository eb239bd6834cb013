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
	Now       time.Time `json:"now"` // of the agent
	Probes    []Probe   `json:"probes"`
}

// ProbeState says how a probe stands.
type ProbeState string

const (
	ProbePassing ProbeState = "passing"
	ProbeFailing ProbeState = "failing" // its failureThreshold is reached
	ProbePending ProbeState = "pending" // its thresholds have not been reached yet
	ProbeDone    ProbeState = "done"    // a startup probe that has succeeded: it runs no more
	ProbeWaiting ProbeState = "waiting" // it does not run now, see Waiting
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
	WaitingFor          string     `json:"waiting,omitempty"`       // for what
	Successes           int32      `json:"successes,omitempty"`     // in a row, at most the threshold
	Failures            int32      `json:"failures,omitempty"`      // likewise
	NextRun             time.Time  `json:"due,omitzero"`            // when it runs next; zero: not known, or under way
	Running             bool       `json:"running,omitempty"`       // one is under way
	MissedPeriods       int64      `json:"missedPeriods,omitempty"` // in which the node had no room for it
	Recent              []ProbeRun `json:"last,omitempty"`          // newest first
}

// ProbeRun is one run of a probe.
type ProbeRun struct {
	At                    time.Time `json:"at"`
	Seconds               float64   `json:"seconds"`
	Result                string    `json:"result"`  // success, warning, failure or unknown
	CountsTowardThreshold bool      `json:"counted"` // against a threshold
	Output                string    `json:"output,omitempty"`
}

func (s *server) probes(w http.ResponseWriter, r *http.Request) {
	p, err := s.h.Probes(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, p, err)
}

// Probes asks for the probes of a pod and their last results.
func (c *Client) Probes(ctx context.Context, namespace, name string) (PodProbes, error) {
	return fetch[PodProbes](ctx, c, question{method: http.MethodGet, path: podPath(namespace, name, "/probes")})
}
