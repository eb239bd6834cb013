package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth/nodeapi"
)

// Handlers are the functions behind the endpoints. The endpoint of a nil function does not exist.
// All functions can be called concurrently. An error that is an apierrors.APIStatus sets the code
// of the response; any other error is a 500. The response body is the text of the error.
type Handlers struct {
	// Pods returns the pods of this node in all namespaces, with status.
	Pods func(ctx context.Context) (*corev1.PodList, error)
	// RunningPods returns the pods that are running according to the runtime, with the names
	// and images of their running containers.
	RunningPods func(ctx context.Context) (*corev1.PodList, error)
	// Logs writes a container's log. With Follow it returns when the container stops or ctx
	// ends. A nil writer discards that stream.
	Logs func(ctx context.Context, req LogRequest, stdout, stderr io.Writer) error
	// Exec prepares a command in a running container, Attach the streams of its main process.
	// They return a URL of the runtime's streaming server that is valid for one use.
	Exec   func(ctx context.Context, req StreamRequest) (string, error)
	Attach func(ctx context.Context, req StreamRequest) (string, error)
	// CheckReachable returns an error if no port of the pod can be forwarded.
	CheckReachable func(ctx context.Context, pod PodRef) error
	// DialPort opens a connection to a port of a pod, in the network namespace of the pod.
	DialPort func(ctx context.Context, pod PodRef, port uint16) (nodeapi.Stream, error)
	// Stats measures the usage of the node and its pods, optionally with file systems.
	Stats func(ctx context.Context, disks bool) (Stats, error)
	// Why returns what a pod is waiting for, Timeline the actions executed for it.
	Why      func(ctx context.Context, namespace, name string) (nodeapi.PodExplanation, error)
	Timeline func(ctx context.Context, namespace, name string) (nodeapi.Timeline, error)
	// Metrics serves the agent's metrics, Probes those of the probes.
	Metrics, Probes http.Handler
	// Config returns the active configuration, to be encoded as JSON.
	Config func() any
	// Checkpoint creates a checkpoint of a running container and returns the path of the archive.
	Checkpoint func(ctx context.Context, req CheckpointRequest) (string, error)
	// SetVerbosity changes the log verbosity, like the flag --v.
	SetVerbosity func(int)
	// Health serves /healthz.
	Health http.Handler
	// LocalVolumes serves the volumes of the class local.
	LocalVolumes http.Handler
	// SystemLogDir is the directory of the host's logs; empty: not served.
	SystemLogDir string
	// Journal is the program journalctl, which serves log queries; empty: there are no log queries.
	Journal string
}

// PodRef names a pod. With an empty UID it matches any pod of that name.
type PodRef struct{ Namespace, Name, UID string }

// LogRequest requests the log of one container.
type LogRequest struct {
	nodeapi.LogRequest
	UID string // empty: any
}

// StreamRequest requests the streams of a command or of a container's main process. With TTY there
// is one output stream, and Stderr is false.
type StreamRequest struct {
	PodRef
	Container                  string
	Command                    []string // exec only
	Stdin, Stdout, Stderr, TTY bool
}

// writeError writes an error as plain text, as the kubelet does. The API server puts it into a
// Status.
func writeError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var api apierrors.APIStatus // the interface has no Error method, so errors.AsType does not accept it
	switch {
	case errors.As(err, &api):
		if c := int(api.Status().Code); c >= 400 && c < 600 {
			code = c
		}
	case errors.Is(err, context.DeadlineExceeded):
		code = http.StatusGatewayTimeout
	}
	http.Error(w, err.Error(), code)
}

// writeJSON encodes v directly to the response, because a list of pods can be large. A write error
// means that the client is disconnected, so it is ignored.
func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// pods serves the pods of the node.
func (s *server) pods(w http.ResponseWriter, r *http.Request) { list(w, r, s.h.Pods) }

// running serves the pods that the runtime is running.
func (s *server) running(w http.ResponseWriter, r *http.Request) { list(w, r, s.h.RunningPods) }

func list(w http.ResponseWriter, r *http.Request, ask func(context.Context) (*corev1.PodList, error)) {
	found, err := ask(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	out := *found // a copy, because the agent may share the list that it returned
	out.APIVersion, out.Kind = "v1", "PodList"
	if out.Items == nil {
		out.Items = []corev1.Pod{}
	}
	writeJSON(w, out)
}

// podView serves what berth knows about a pod beyond its status, as JSON.
func podView[T any](fetch func(ctx context.Context, namespace, name string) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		pod := podOf(r)
		v, err := fetch(r.Context(), pod.Namespace, pod.Name)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, v)
	}
}

// configz serves the active configuration under upstream's key.
func (s *server) configz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.h.Config()})
}
