package nodeapi

import (
	"context"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// WorkloadDescription is a workload with everything that belongs to it.
type WorkloadDescription struct {
	Workload
	// Children are the ReplicaSets or Jobs that it owns, ordered by name, without their events.
	Children []Workload `json:"children,omitempty"`
	// Pods are all its pods, also those of Children, ordered by name.
	Pods []corev1.Pod `json:"pods,omitempty"`
}

// WorkloadExplanation says why not all pods of a workload are ready and what happens next.
type WorkloadExplanation struct {
	Kind       string           `json:"kind"`
	Namespace  string           `json:"namespace"`
	Name       string           `json:"name"`
	UID        types.UID        `json:"uid"`
	Summary    string           `json:"summary"`              // one sentence
	WaitingFor []WaitReason     `json:"waitingFor,omitempty"` // of the workload and of its pods; empty: nothing
	Next       []Step           `json:"next,omitempty"`       // next changes in order, if each pod becomes ready
	Pods       []PodExplanation `json:"pods,omitempty"`       // the pods that WaitingFor is about
}

// WorkloadPlan is what would be done for one workload, if each new pod becomes ready.
type WorkloadPlan struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Change    Change   `json:"change"`
	Fields    []string `json:"fields,omitempty"` // the changed fields of the specification
	// EndedOverrides are the changes made by commands that the file would end, by command.
	EndedOverrides map[string]string `json:"endedOverrides,omitempty"`
	Limits         []Detail          `json:"limits,omitempty"` // such as "pods at most" 4
	Steps          []WorkloadStep    `json:"steps"`
	Incomplete     bool              `json:"incomplete,omitempty"` // there are more steps
	// NewPod is what would be done for the first new pod. The others differ only in name.
	NewPod       *PodPlan  `json:"newPod,omitempty"`
	NextSchedule time.Time `json:"nextSchedule,omitzero"` // of a CronJob
	Reasons      []Reason  `json:"reasons,omitempty"`     // why less would be done than the file asks for
}

// WorkloadStep is the creation or deletion of a pod.
type WorkloadStep struct {
	Action string `json:"action"` // CreatePod or DeletePod
	Pod    string `json:"pod"`
	After  string `json:"after,omitempty"` // what has to happen first
	// Rejection is the reason for which admission would reject the new pod; empty: admitted.
	Rejection string `json:"rejection,omitempty"`
}

const workloadPattern = "/v1/workloads/{kind}/{namespace}/{name}"

func workloadPath(kind, namespace, name, view string) string {
	return "/v1/workloads/" + url.PathEscape(kind) + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name) + view
}

func (s *server) describeWorkload(w http.ResponseWriter, r *http.Request) {
	v, err := s.h.DescribeWorkload(r.Context(), r.PathValue("kind"), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, v, err)
}

func (s *server) whyWorkload(w http.ResponseWriter, r *http.Request) {
	v, err := s.h.WhyWorkload(r.Context(), r.PathValue("kind"), r.PathValue("namespace"), r.PathValue("name"))
	reply(w, v, err)
}

// DescribeWorkload returns a workload with everything that belongs to it. kind is its kind, such as Deployment.
func (c *Client) DescribeWorkload(ctx context.Context, kind, namespace, name string) (WorkloadDescription, error) {
	return fetch[WorkloadDescription](ctx, c, request{
		method: http.MethodGet, path: workloadPath(kind, namespace, name, "/describe"),
	})
}

// WhyWorkload returns why not all pods of a workload are ready.
func (c *Client) WhyWorkload(ctx context.Context, kind, namespace, name string) (WorkloadExplanation, error) {
	return fetch[WorkloadExplanation](ctx, c, request{
		method: http.MethodGet, path: workloadPath(kind, namespace, name, "/why"),
	})
}
