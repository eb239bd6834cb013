package nodeapi

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxWindow bounds how long a question for usage may take.
const maxWindow = time.Minute

// TopRequest asks what pods use.
type TopRequest struct {
	PodsRequest
	Window time.Duration // over which rates are measured
}

// Top is what pods use, measured over a moment.
type Top struct {
	At     time.Time     `json:"at"`
	Window time.Duration `json:"windowNanoSeconds"`
	Pods   []PodTop      `json:"pods"`
}

// PodTop is what one pod uses.
type PodTop struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	Resources
	Containers []ContainerTop `json:"containers"`
}

// ContainerTop is what one running container uses.
type ContainerTop struct {
	Name string `json:"name"`
	ID   string `json:"id"`
	Resources
}

// Resources are in the units of the kubelet's summary where that has them.
type Resources struct {
	CPUNanoCores        uint64  `json:"usageNanoCores"`       // over the window
	CPUNanoSeconds      uint64  `json:"usageCoreNanoSeconds"` // since the cgroup was made
	MemoryBytes         uint64  `json:"usageBytes"`
	WorkingSetBytes     uint64  `json:"workingSetBytes"`
	ReadBytesPerSecond  float64 `json:"readBytesPerSecond"`
	WriteBytesPerSecond float64 `json:"writeBytesPerSecond"`
	IOUnavailable       bool    `json:"ioUnknown,omitempty"` // the kernel does not count what is read and written
	Processes           int     `json:"processes"`
	PSI                 *PSI    `json:"pressure,omitempty"` // absent: the kernel does not tell
}

// PSI is the share of the last ten seconds in which something waited for a
// resource, in percent.
type PSI struct {
	CPU    float64 `json:"cpuSomeAvg10"`
	Memory float64 `json:"memorySomeAvg10"`
	IO     float64 `json:"ioSomeAvg10"`
}

func (s *server) top(w http.ResponseWriter, r *http.Request) {
	c, err := choiceOf(r)
	if err != nil {
		writeError(w, err)
		return
	}
	window, err := time.ParseDuration(r.URL.Query().Get("window"))
	if err != nil || window <= 0 || window > maxWindow {
		writeError(w, apierrors.NewBadRequest("window: it must be a duration of more than 0s and at most "+maxWindow.String()))
		return
	}
	ctx, cancel := s.streaming(r)
	defer cancel()
	top, err := s.h.Top(ctx, c.takes, window)
	reply(w, top, err)
}

// Top asks what pods use. The answer takes as long as the window.
func (c *Client) Top(ctx context.Context, req TopRequest) (Top, error) {
	q := req.values()
	q.Set("window", req.Window.String())
	return fetch[Top](ctx, c, question{method: http.MethodGet, path: "/v1/top", query: q})
}

// PodFilter says which pods are asked for.
type PodFilter = func(*corev1.Pod) bool
