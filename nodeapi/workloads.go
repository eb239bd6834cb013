package nodeapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// WorkloadsRequest selects workloads of manifest files.
type WorkloadsRequest struct {
	Namespace string // empty: all
	// Wait waits for a change of any workload first, for a second at most.
	Wait bool
}

// Workload is a Deployment, StatefulSet, DaemonSet, Job or CronJob of a manifest file, or a ReplicaSet or Job that
// belongs to one.
type Workload struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Object    json.RawMessage `json:"object"`         // with status
	File      string          `json:"file,omitempty"` // empty: it belongs to another workload
	// Overrides describes the changes made by commands, by command. They end when the file changes.
	Overrides map[string]string  `json:"overrides,omitempty"`
	Revisions []WorkloadRevision `json:"revisions,omitempty"` // oldest first
	Events    []corev1.Event     `json:"events,omitempty"`    // oldest first
	Warnings  []Warning          `json:"warnings,omitempty"`
}

// WorkloadRevision is one pod template in the history of a workload.
type WorkloadRevision struct {
	Revision    int64                   `json:"revision"`
	ChangeCause string                  `json:"changeCause,omitempty"`
	Template    *corev1.PodTemplateSpec `json:"template,omitempty"`
}

// WorkloadCommand is the name of a change of a workload.
type WorkloadCommand string

// The commands.
const (
	ScaleWorkload   WorkloadCommand = "scale"
	PauseWorkload   WorkloadCommand = "pause"
	ResumeWorkload  WorkloadCommand = "resume"
	RestartWorkload WorkloadCommand = "restart"
	UndoWorkload    WorkloadCommand = "undo"
)

// WorkloadEdit asks for a change of a workload.
type WorkloadEdit struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Command   WorkloadCommand `json:"command"`
	Replicas  int32           `json:"replicas,omitempty"` // scale
	Revision  int64           `json:"revision,omitempty"` // undo; 0: the previous one
}

// WorkloadEditResult is the result of a change.
type WorkloadEditResult struct {
	Revision int64 `json:"revision,omitempty"` // undo: the restored one
	Skipped  bool  `json:"skipped,omitempty"`  // undo: the current template is already that of the revision
}

func (s *server) workloads(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	list, err := s.h.Workloads(r.Context(), WorkloadsRequest{
		Namespace: q.Get("namespace"), Wait: q.Get("wait") == "true",
	})
	reply(w, list, err)
}

func (s *server) editWorkload(w http.ResponseWriter, r *http.Request) {
	var req WorkloadEdit
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxExec)).Decode(&req); err != nil {
		writeError(w, apierrors.NewBadRequest("decode request: "+err.Error()))
		return
	}
	result, err := s.h.EditWorkload(r.Context(), req)
	reply(w, result, err)
}

// Workloads returns the workloads of manifest files, ordered by kind, namespace and name.
func (c *Client) Workloads(ctx context.Context, req WorkloadsRequest) ([]Workload, error) {
	return fetch[[]Workload](ctx, c, request{method: http.MethodGet, path: "/v1/workloads", query: url.Values{
		"namespace": {req.Namespace}, "wait": {strconv.FormatBool(req.Wait)},
	}})
}

// EditWorkload changes a workload until its file changes.
func (c *Client) EditWorkload(ctx context.Context, req WorkloadEdit) (WorkloadEditResult, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return WorkloadEditResult{}, err
	}
	return fetch[WorkloadEditResult](ctx, c, request{method: http.MethodPost, path: "/v1/workloads", body: body})
}
