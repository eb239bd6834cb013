package server

import (
	"context"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
)

// Handlers is what the agent can answer. A nil function is an endpoint that this
// node does not have. All are called from many goroutines at once. An error that
// is an apierrors.APIStatus gives the answer its code; any other is a 500. Its
// text is the body.
type Handlers struct {
	// Pods returns the pods of this node in all namespaces, with status.
	Pods func(ctx context.Context) (*corev1.PodList, error)
	// RunningPods returns what runs now, as far as the runtime's view tells: each pod
	// with the names and images of its running containers.
	RunningPods func(ctx context.Context) (*corev1.PodList, error)
	// Logs writes a container's log. With Follow it ends when the container does
	// or ctx ends. A nil writer is a stream that is not wanted.
	Logs func(ctx context.Context, req LogRequest, stdout, stderr io.Writer) error
	// Exec prepares a command in a running container, and Attach the streams of its
	// own process. They return a URL of the runtime's streaming server that is good
	// for one use.
	Exec   func(ctx context.Context, req StreamRequest) (string, error)
	Attach func(ctx context.Context, req StreamRequest) (string, error)
	// CheckReachable tells whether ports of the pod can be forwarded: an error is the
	// pod's, not that of one port.
	CheckReachable func(ctx context.Context, pod PodRef) error
	// DialPort opens a connection to a port of a pod, in the pod's network.
	DialPort func(ctx context.Context, pod PodRef, port uint16) (nodeapi.Stream, error)
	// Stats measures what the node and its pods use, with the disks if asked to.
	Stats func(ctx context.Context, disks bool) (Stats, error)
	// Metrics are the agent's own figures, Probes those of its probes.
	Metrics, Probes http.Handler
	// Config is the configuration in force, for JSON.
	Config func() any
	// Health answers /healthz.
	Health http.Handler
	// SystemLogDir is the folder of the host's logs; empty: it is not shown.
	SystemLogDir string
}

// PodRef names a pod; UID is empty if any incarnation will do.
type PodRef struct{ Namespace, Name, UID string }

// LogRequest asks for the log of one container.
type LogRequest struct {
	nodeapi.LogRequest
	UID string // empty: any
}

// StreamRequest asks for the streams of a command or of a container's process.
// With TTY the outputs are one, and Stderr is not asked for.
type StreamRequest struct {
	PodRef
	Container                  string
	Command                    []string // of exec only
	Stdin, Stdout, Stderr, TTY bool
}
