package nodeapi

import (
	"context"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/internal/cis"
)

// Handlers are the functions behind the endpoints. The endpoint of a nil function returns a Status
// with code 501. All functions can be called concurrently. An error that is an apierrors.APIStatus
// (apierrors.NewNotFound, …) keeps its code and reason on the wire. Any other error is sent as an
// InternalError with its text.
type Handlers struct {
	// Pods returns the pods of this node in all namespaces, with status.
	Pods func(ctx context.Context) (*corev1.PodList, error)
	// WatchPods sends every pod as Added, then one Synced event without a pod,
	// then each change, until ctx ends or send returns an error.
	WatchPods func(ctx context.Context, send func(PodEvent) error) error
	// Node returns the summary of the node: its name, invalid manifest files, warnings.
	Node func(ctx context.Context) (NodeSummary, error)
	// Describe returns one pod with everything that the agent knows about it.
	Describe func(ctx context.Context, namespace, name string) (Description, error)
	// Events returns the events kept on this node, oldest first.
	Events func(ctx context.Context, req EventsRequest) (*corev1.EventList, error)
	// WatchEvents sends the events kept on this node, oldest first, and then each new event,
	// until ctx ends or send returns an error.
	WatchEvents func(ctx context.Context, req EventsRequest, send func(EventNotification) error) error
	// Logs writes a container's log. With Follow it returns when the container stops or ctx
	// ends. The writers can be used from several goroutines.
	Logs func(ctx context.Context, req LogRequest, stdout, stderr io.Writer) error
	// ExecURL prepares a command in a container and returns a URL of the runtime's streaming
	// server that is valid for one use.
	ExecURL func(ctx context.Context, req ExecRequest) (string, error)
	// Attach prepares the streams of a container's main process.
	Attach func(ctx context.Context, req AttachRequest) (AttachResponse, error)
	// DialPort opens a connection to a port of a pod, in the network namespace of the pod.
	DialPort func(ctx context.Context, namespace, name string, port uint16) (Stream, error)
	// Restart restarts containers of a pod.
	Restart func(ctx context.Context, req RestartRequest) error
	// Debug adds an ephemeral container to a running pod.
	Debug func(ctx context.Context, namespace, name string, add corev1.EphemeralContainer) error
	// Top measures the usage of the selected pods over the window.
	Top func(ctx context.Context, chosen PodFilter, window time.Duration) (Top, error)
	// Why returns what a pod is waiting for and the next steps.
	Why func(ctx context.Context, namespace, name string) (PodExplanation, error)
	// Timeline returns the actions executed for a pod with their durations.
	Timeline func(ctx context.Context, namespace, name string) (Timeline, error)
	// Probes returns the probes of a pod with their recent results.
	Probes func(ctx context.Context, namespace, name string) (PodProbes, error)
	// Plan returns the actions that a manifest (YAML or JSON) would cause, without executing
	// them.
	Plan func(ctx context.Context, manifest []byte) (PlanResult, error)
	// Workloads returns the workloads of manifest files with the objects that belong to them.
	Workloads func(ctx context.Context, req WorkloadsRequest) ([]Workload, error)
	// EditWorkload changes a workload of a manifest file until the file changes.
	EditWorkload func(ctx context.Context, req WorkloadEdit) (WorkloadEditResult, error)
	// DescribeWorkload returns a workload of a kind with everything that belongs to it.
	DescribeWorkload func(ctx context.Context, kind, namespace, name string) (WorkloadDescription, error)
	// WhyWorkload returns why not all pods of a workload are ready and what happens next.
	WhyWorkload func(ctx context.Context, kind, namespace, name string) (WorkloadExplanation, error)
	// Check checks whether this node can run pods.
	Check func(ctx context.Context) (CheckReport, error)
	// CIS checks the node against the CIS Kubernetes Benchmark.
	CIS func(ctx context.Context) (cis.Report, error)
	// Eviction returns the eviction order of the pods for a signal. With an empty signal it
	// returns the orders for the active signals.
	Eviction func(ctx context.Context, signal string) (EvictionPreview, error)
	// Images returns the images on the node and the state of the image archives.
	Images func(ctx context.Context) (Images, error)
	// Services returns the Services of a namespace (empty: all) and how this node routes them. A
	// name selects one of them.
	Services func(ctx context.Context, namespace, name string) (NodeServices, error)
	// DNS returns what the DNS server of the node answers to a question.
	DNS func(ctx context.Context, q DNSQuery) (DNSAnswer, error)
	// Drain terminates the pods because the host is shutting down, and waits for them.
	Drain func(ctx context.Context) (DrainResult, error)
	// Metrics serves the metrics that the health port exposes.
	Metrics http.Handler
	// Version returns the versions of the agent and the runtime.
	Version func(ctx context.Context) (Version, error)
}
