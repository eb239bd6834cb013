package hostfake

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// Host is a fake host with its container runtime. It is safe for concurrent use.
type Host struct {
	// The test sets these before use. Their arguments are the call, as "verb pod/object",
	// and the number of calls with this name so far.
	Latency     func(call string, n int) time.Duration // duration of the call
	ErrorBefore func(call string, n int) error         // the call fails without effect
	ErrorAfter  func(call string, n int) error         // the call takes effect, then fails
	Exits       func(container string) (after time.Duration, code int32, ok bool)
	// Events is called on every change. Nil: a runtime without events.
	Events func(uid types.UID, sb *plan.Sandbox, ks []plan.Container)

	Mu                  sync.Mutex
	AllPods             map[types.UID]*PodState
	HasImage            map[string]bool
	ImageChecks         map[string]int       // number of presence checks by image
	VolumeMounts        []plan.Mount         // of every container
	ImageError          string               // error of image inspections; empty: they succeed
	MovedTags           map[string]string    // images whose tags have moved, with the suffix of the new ID
	LastContainerConfig plan.ContainerConfig // of the last created container
	Calls               []Call
	Count               map[string]int
	Active              map[string]int // number of calls in progress by verb
	MaxActive           map[string]int // maximum of Active by verb
	n                   int
	Violations          []string
	NetworkState        plan.NetworkStatus
	ListError           error // error of runtime lists; nil: they succeed
}

// PodState is everything that exists of a pod on the host and in the runtime.
type PodState struct {
	Pod        *corev1.Pod
	Sandboxes  []plan.Sandbox
	Containers []plan.Container
	Volumes    map[string]plan.VolumeStatus
	Dirs       bool
	Cgroup     bool
}

// Call is one recorded call.
type Call struct {
	At   time.Time
	Call string
}

// NewHost returns a host without pods.
func NewHost() *Host {
	return &Host{
		Latency: func(string, int) time.Duration { return time.Millisecond },
		AllPods: map[types.UID]*PodState{}, HasImage: map[string]bool{}, ImageChecks: map[string]int{},
		MovedTags: map[string]string{}, Count: map[string]int{},
		Active: map[string]int{}, MaxActive: map[string]int{}, NetworkState: plan.NetworkStatus{Ready: true},
	}
}

// Network returns the state of the pod network.
func (h *Host) Network() plan.NetworkStatus {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.NetworkState
}

// SetNetwork changes the state of the pod network.
func (h *Host) SetNetwork(n plan.NetworkStatus) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.NetworkState = n
}

// SetLatency changes the duration of later calls.
func (h *Host) SetLatency(f func(string, int) time.Duration) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Latency = f
}

// StateOf returns the state of a pod, creating it if necessary. The caller holds Mu.
func (h *Host) StateOf(uid types.UID) *PodState {
	if h.AllPods[uid] == nil {
		h.AllPods[uid] = &PodState{Volumes: map[string]plan.VolumeStatus{}}
	}
	return h.AllPods[uid]
}

// call records and executes one call: it waits for the latency, applies the effect with Mu
// held, and returns the configured error before or after that.
func (h *Host) call(ctx context.Context, verb, object string, effect func() error) error {
	name := verb + " " + object
	h.Mu.Lock()
	h.Count[name]++
	n := h.Count[name]
	h.Calls = append(h.Calls, Call{time.Now(), name})
	h.Active[verb]++
	h.MaxActive[verb] = max(h.MaxActive[verb], h.Active[verb])
	latency := h.Latency
	h.Mu.Unlock()
	defer func() {
		h.Mu.Lock()
		h.Active[verb]--
		h.Mu.Unlock()
	}()
	if !sleep(ctx, latency(name, n)) {
		return &plan.Error{Kind: plan.Canceled, Err: ctx.Err()}
	}
	if h.ErrorBefore != nil {
		if err := h.ErrorBefore(name, n); err != nil {
			return err
		}
	}
	h.Mu.Lock()
	err := effect()
	h.Mu.Unlock()
	if err == nil && h.ErrorAfter != nil {
		err = h.ErrorAfter(name, n)
	}
	return err
}

// CallCount returns the number of calls with the prefix.
func (h *Host) CallCount(prefix string) (n int) { return len(h.CallTimes(prefix)) }

// CallTimes returns the start times of the calls with the prefix.
func (h *Host) CallTimes(prefix string) (at []time.Time) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, c := range h.Calls {
		if len(c.Call) >= len(prefix) && c.Call[:len(prefix)] == prefix {
			at = append(at, c.At)
		}
	}
	return at
}

// MaxConcurrent returns the maximum number of concurrent calls of a verb.
func (h *Host) MaxConcurrent(verb string) int {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.MaxActive[verb]
}

// Remaining describes everything that exists of a pod. Empty: nothing.
func (h *Host) Remaining(uid types.UID) string {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	p := h.StateOf(uid)
	if len(p.Sandboxes)+len(p.Containers)+len(p.Volumes) == 0 && !p.Dirs && !p.Cgroup {
		return ""
	}
	return fmt.Sprintf("%v %v %v dirs=%v cgroup=%v", p.Sandboxes, p.Containers, p.Volumes, p.Dirs, p.Cgroup)
}

// RunningContainers returns the sorted names of the running containers of a pod.
func (h *Host) RunningContainers(uid types.UID) (names []string) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, k := range h.StateOf(uid).Containers {
		if k.State == plan.Running {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	return names
}

// PowerOff stops all sandboxes and containers without events, as a power failure does.
func (h *Host) PowerOff() {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, p := range h.AllPods {
		for i := range p.Sandboxes {
			p.Sandboxes[i].Ready = false
		}
		for i := range p.Containers {
			if k := &p.Containers[i]; k.State == plan.Running {
				k.State, k.ExitCode, k.FinishedAt = plan.Exited, 255, time.Now()
			}
		}
		p.Cgroup = false
	}
}

// Kill lets a running container exit with the given code. It sends an event unless silent is set.
func (h *Host) Kill(uid types.UID, name string, code int32, silent bool) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	p := h.StateOf(uid)
	for i := range p.Containers {
		if k := &p.Containers[i]; k.Name == name && k.State == plan.Running {
			k.State, k.ExitCode, k.FinishedAt = plan.Exited, code, time.Now()
		}
	}
	if !silent {
		h.notify(uid)
	}
}

// notify sends an event with the current state of a pod. The caller holds Mu, so events
// are in order.
func (h *Host) notify(uid types.UID) {
	if h.Events == nil {
		return
	}
	p := h.StateOf(uid)
	if len(p.Sandboxes) == 0 {
		return
	}
	sb := p.Sandboxes[0]
	h.Events(uid, &sb, slices.Clone(p.Containers))
}

func (h *Host) violates(format string, args ...any) {
	h.Violations = append(h.Violations, fmt.Sprintf(format, args...))
}

func name(pod *corev1.Pod) string { return string(pod.UID) }

// Hash returns a pseudo-random number that depends only on its arguments.
func Hash(seed int, call string, n int, what string) uint64 {
	f := fnv.New64a()
	_, _ = fmt.Fprint(f, seed, call, n, what) // a hash returns no errors
	return f.Sum64() >> 9
}

// SetListError sets the error of runtime lists. Nil: they succeed.
func (h *Host) SetListError(err error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.ListError = err
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
