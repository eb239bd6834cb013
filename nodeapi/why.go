package nodeapi

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodExplanation says what a pod is waiting for and what happens next.
type PodExplanation struct {
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	UID        types.UID       `json:"uid"`
	Phase      corev1.PodPhase `json:"phase"`
	Summary    string          `json:"summary"`              // one sentence
	WaitingFor []WaitReason    `json:"waitingFor,omitempty"` // empty: nothing
	InProgress []Operation     `json:"inProgress,omitempty"` // actions in progress
	Next       []Step          `json:"next,omitempty"`       // next steps in order, as far as known
	OtherPods  []WaitReason    `json:"otherPods,omitempty"`  // what other pods of this name are waiting for
	Reasons    []Reason        `json:"reasons,omitempty"`    // decisions of the last sync
	Syncs      int64           `json:"syncs"`                // number of syncs since the agent started
	LastSync   time.Time       `json:"lastSync,omitzero"`
	NextSync   time.Time       `json:"nextSync,omitzero"` // time of the next sync without an event; zero: none
	// NetworkPolicies is nil if network policies are not enforced on the pod.
	NetworkPolicies *PodNetworkPolicies `json:"networkPolicies,omitempty"`
}

// WaitReason is one thing that a pod is waiting for.
type WaitReason struct {
	Reason   string    `json:"reason"`           // CamelCase: CrashLoopBackOff, NetworkNotReady, Admission, …
	Target   string    `json:"target,omitempty"` // container, volume, image; empty: the pod
	Message  string    `json:"message"`          // one sentence
	Since    time.Time `json:"since,omitzero"`
	Until    time.Time `json:"until,omitzero"`     // when it expires; zero: it ends with a change of state
	Failures int       `json:"failures,omitempty"` // consecutive failures
	Details  []Detail  `json:"details,omitzero"`   // values behind the message
}

// Detail is a named value, such as "requested cpu" 2.
type Detail struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Operation is an action in progress.
type Operation struct {
	Action string    `json:"action"` // RunSandbox, PullImage, …
	Target string    `json:"target,omitempty"`
	Detail string    `json:"detail,omitempty"` // progress: 12.3 MiB of 40.1 MiB
	Since  time.Time `json:"since,omitzero"`
}

// Step is an action that will follow.
type Step struct {
	Action string    `json:"action"`
	Target string    `json:"target,omitempty"`
	After  string    `json:"after,omitempty"` // what has to happen first
	At     time.Time `json:"at,omitzero"`     // zero: not scheduled for a time
}

func (s *server) why(w http.ResponseWriter, r *http.Request) {
	v, err := s.h.Why(r.Context(), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, v, err)
}

// Why returns what a pod is waiting for.
func (c *Client) Why(ctx context.Context, namespace, name string) (PodExplanation, error) {
	return fetch[PodExplanation](ctx, c, request{method: http.MethodGet, path: podPath(namespace, name, "/why")})
}

// PodNetworkPolicies says which NetworkPolicies isolate a pod, and what the rules have counted.
type PodNetworkPolicies struct {
	// Installed is false while the rules of the pod are not in place.
	Installed bool            `json:"installed"`
	Error     string          `json:"error,omitempty"` // why policies and counters are not known
	Ingress   PolicyDirection `json:"ingress"`
	Egress    PolicyDirection `json:"egress"`
}

// PolicyDirection is the traffic to a pod or from it.
type PolicyDirection struct {
	// Isolated is true if a policy selects the pod. Then only what a policy allows passes.
	Isolated bool        `json:"isolated"`
	Policies []PodPolicy `json:"policies,omitempty"`
	// DroppedPackets counts packets that no policy of the pod allowed.
	DroppedPackets uint64 `json:"droppedPackets"`
}

// PodPolicy is a policy that selects a pod. It is in the namespace of the pod.
type PodPolicy struct {
	Name string `json:"name"`
	// AllowedConnections counts connections of all pods of the node that the policy has allowed.
	AllowedConnections uint64 `json:"allowedConnections"`
	// Allows has a text for each rule; empty: the policy allows nothing.
	Allows []string `json:"allows,omitempty"`
}
