package nodeapi

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxWindow limits the measurement window.
const maxWindow = time.Minute

// TopRequest asks for the usage of pods.
type TopRequest struct {
	PodsRequest
	Window time.Duration // over which rates are measured
}

// Top is the usage of pods, measured over a window.
type Top struct {
	At     time.Time     `json:"at"`
	Window time.Duration `json:"windowNanoSeconds"`
	Pods   []PodTop      `json:"pods"`
}

// PodTop is the usage of one pod.
type PodTop struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Resources
	Containers []ContainerTop `json:"containers"`
}

// ContainerTop is the usage of one running container.
type ContainerTop struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	Resources
}

// Resources uses the units of the kubelet's Summary API where it has the same value.
type Resources struct {
	CPUNanoCores        uint64  `json:"usageNanoCores"`       // over the window
	CPUNanoSeconds      uint64  `json:"usageCoreNanoSeconds"` // since the cgroup was created
	MemoryBytes         uint64  `json:"usageBytes"`
	WorkingSetBytes     uint64  `json:"workingSetBytes"`
	ReadBytesPerSecond  float64 `json:"readBytesPerSecond"`
	WriteBytesPerSecond float64 `json:"writeBytesPerSecond"`
	IOUnavailable       bool    `json:"ioUnavailable,omitempty"` // I/O is not accounted by the kernel
	Processes           int     `json:"processes"`
	PSI                 *PSI    `json:"psi,omitempty"` // nil: not provided by the kernel
}

// PSI is the share of the last ten seconds in which at least one task waited for a resource, in
// percent.
type PSI struct {
	CPU    float64 `json:"cpuSomeAvg10"`
	Memory float64 `json:"memorySomeAvg10"`
	IO     float64 `json:"ioSomeAvg10"`
}

func (s *server) top(w http.ResponseWriter, r *http.Request) {
	c, err := podSelectorOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	window, err := time.ParseDuration(r.URL.Query().Get("window"))
	if err != nil || window <= 0 || window > maxWindow {
		writeError(
			w,
			apierrors.NewBadRequest("window: must be a duration greater than 0s and at most "+maxWindow.String()),
		)
		return
	}
	ctx, cancel := s.streaming(r)
	defer cancel()
	top, err := s.h.Top(ctx, c.matches, window)
	reply(w, top, err)
}

// Top returns the usage of pods. The request takes as long as the window.
func (c *Client) Top(ctx context.Context, req TopRequest) (Top, error) {
	q := req.values()
	q.Set("window", req.Window.String())
	return fetch[Top](ctx, c, request{method: http.MethodGet, path: "/v1/top", query: q})
}

// PodFilter selects pods.
type PodFilter = func(*corev1.Pod) bool
