package nodeapi

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodExplanation tells what a pod waits for and what comes next.
type PodExplanation struct {
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	UID        types.UID       `json:"uid"`
	Phase      corev1.PodPhase `json:"phase"`
	Summary    string          `json:"summary"`           // one sentence for who reads no further
	WaitingFor []WaitReason    `json:"waiting,omitempty"` // what it waits for; empty: nothing
	InProgress []Operation     `json:"busy,omitempty"`    // what is being done now
	Next       []Step          `json:"next,omitempty"`    // what comes then, in order as far as it is known
	OtherPods  []WaitReason    `json:"others,omitempty"`  // what other pods of this name wait for
	Reasons    []Reason        `json:"reasons,omitempty"` // the decisions of the last pass
	Syncs      int64           `json:"passes"`            // made for this pod since the agent started
	LastSync   time.Time       `json:"lastPass,omitzero"`
	NextSync   time.Time       `json:"wake,omitzero"` // when it is looked at again without an event; zero: never
}

// WaitReason is one thing that a pod waits for.
type WaitReason struct {
	Reason   string    `json:"for"`              // CamelCase: CrashLoopBackOff, NetworkNotReady, Admission, …
	Target   string    `json:"on,omitempty"`     // container, volume, image; empty: the pod
	Message  string    `json:"message"`          // one sentence
	Since    time.Time `json:"since,omitzero"`   //
	Until    time.Time `json:"until,omitzero"`   // when it ends by itself; zero: when something changes
	Failures int       `json:"tries,omitempty"`  // failed attempts in a row
	Details  []Detail  `json:"figures,omitzero"` // the numbers behind it
}

// Detail is one number with its name, as "cpu wanted" 2 and "cpu free" 500m.
type Detail struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Operation is an action under way.
type Operation struct {
	Action string    `json:"action"` // RunSandbox, PullImage, …
	Target string    `json:"on,omitempty"`
	Detail string    `json:"detail,omitempty"` // progress: 12.3 MiB of 40.1 MiB
	Since  time.Time `json:"since,omitzero"`
}

// Step is something that comes later.
type Step struct {
	Action string    `json:"action"`
	Target string    `json:"on,omitempty"`
	After  string    `json:"after,omitempty"` // what must come first, in words
	At     time.Time `json:"at,omitzero"`     // zero: not a matter of time
}

func (s *server) why(w http.ResponseWriter, r *http.Request) {
	v, err := s.h.Why(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, v, err)
}

// Why asks what a pod waits for.
func (c *Client) Why(ctx context.Context, namespace, name string) (PodExplanation, error) {
	return fetch[PodExplanation](ctx, c, question{method: http.MethodGet, path: podPath(namespace, name, "/why")})
}
