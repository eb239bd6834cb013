package nodeapi

import (
	"context"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Handlers is what the agent can answer. A nil function is a question that this
// agent does not know: the client gets a Status with code 501. All functions
// are called from many goroutines at once. An error that is an
// apierrors.APIStatus (apierrors.NewNotFound, …) keeps its code and reason on
// the wire; any other becomes an InternalError with its text.
type Handlers struct {
	// Pods returns the pods of this node in all namespaces, with status.
	Pods func(ctx context.Context) (*corev1.PodList, error)
	// WatchPods sends every pod as Added, then one Synced event without a pod,
	// then each change, until ctx ends or send returns an error.
	WatchPods func(ctx context.Context, send func(PodEvent) error) error
	// Node tells about the node: its name, bad manifest files, warnings.
	Node func(ctx context.Context) (NodeSummary, error)
	// Describe returns one pod with what the agent knows about it.
	Describe func(ctx context.Context, namespace, name string) (Description, error)
	// Events returns the events kept on this node, oldest first.
	Events func(ctx context.Context, req EventsRequest) (*corev1.EventList, error)
	// WatchEvents sends the events kept on this node, oldest first, and then
	// each as it is told, until ctx ends or send returns an error.
	WatchEvents func(ctx context.Context, req EventsRequest, send func(EventNotification) error) error
	// Logs writes a container's log. With Follow it ends when the container
	// does or ctx ends. The writers may be used from several goroutines.
	Logs func(ctx context.Context, req LogRequest, stdout, stderr io.Writer) error
	// ExecURL prepares a command in a container and returns the URL of the
	// runtime's streaming server, good for one use.
	ExecURL func(ctx context.Context, req ExecRequest) (string, error)
	// Attach prepares the streams of a container's own process.
	Attach func(ctx context.Context, req AttachRequest) (AttachResponse, error)
	// DialPort opens a connection to a port of a pod, in the pod's network.
	DialPort func(ctx context.Context, namespace, name string, port uint16) (Stream, error)
	// Restart has containers of a pod run anew.
	Restart func(ctx context.Context, req RestartRequest) error
	// Debug puts an ephemeral container into a running pod.
	Debug func(ctx context.Context, namespace, name string, add corev1.EphemeralContainer) error
	// Top measures, over the window, what the chosen pods use.
	Top func(ctx context.Context, chosen PodFilter, window time.Duration) (Top, error)
	// Why tells what a pod waits for and what comes next.
	Why func(ctx context.Context, namespace, name string) (PodExplanation, error)
	// Timeline tells what was done for a pod and how long it took.
	Timeline func(ctx context.Context, namespace, name string) (Timeline, error)
	// Probes tells of the probes of a pod and their last results.
	Probes func(ctx context.Context, namespace, name string) (PodProbes, error)
	// Plan tells what would be done for a manifest (YAML or JSON), without
	// doing it.
	Plan func(ctx context.Context, manifest []byte) (PlanResult, error)
	// Check looks whether this node can run pods.
	Check func(ctx context.Context) (CheckReport, error)
	// Eviction tells who would have to go if the node ran short of what a signal
	// is about; empty: of what matters now.
	Eviction func(ctx context.Context, signal string) (EvictionPreview, error)
	// Images tells which images are on the node and what its archives have brought.
	Images func(ctx context.Context) (Images, error)
	// Drain ends the pods because the host goes down, and waits until they have.
	Drain func(ctx context.Context) (DrainResult, error)
	// Metrics are the figures that the health port shows.
	Metrics http.Handler
	// Version tells what is running.
	Version func(ctx context.Context) (Version, error)
}
