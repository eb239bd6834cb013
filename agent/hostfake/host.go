// Package hostfake is an in-memory fake of a host with a container runtime. It provides
// the adapters of all stages for the tests of packages agent and agent/pod. It uses
// package time, so it also runs in a synctest bubble.
package hostfake

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
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

// --- prepare

// Pod returns the sandboxes and containers of a pod.
func (h *Host) Pod(ctx context.Context, uid types.UID) (sbs []plan.Sandbox, ks []plan.Container, err error) {
	h.Mu.Lock() // the response has the state at the start of the call
	sbs, ks = slices.Clone(h.StateOf(uid).Sandboxes), slices.Clone(h.StateOf(uid).Containers)
	h.Mu.Unlock()
	err = h.call(ctx, "observe", string(uid), func() error { return nil })
	return sbs, ks, err
}

// Container returns the container with an ID.
func (h *Host) Container(ctx context.Context, id string) (k plan.Container, err error) {
	err = h.call(ctx, "status", id, func() error {
		for _, p := range h.AllPods {
			for _, x := range p.Containers {
				if x.ID == id {
					k = x
					return nil
				}
			}
		}
		return &plan.Error{Kind: plan.NotFound, Err: errors.New("no such container")}
	})
	return k, err
}

// Observe reports whether the directories of a pod exist, and the state of its volumes.
func (h *Host) Observe(ctx context.Context, pod *corev1.Pod) (dirs bool, vols map[string]plan.VolumeStatus, err error) {
	err = h.call(ctx, "observeHost", name(pod), func() error {
		dirs, vols = h.StateOf(pod.UID).Dirs, maps.Clone(h.StateOf(pod.UID).Volumes)
		return nil
	})
	return dirs, vols, err
}

// Images is the adapter of images.
type Images struct{ *Host }

// Images returns the adapter of images.
func (h *Host) Images() Images { return Images{h} }

// Observe returns the status of images on the host and counts the checks in ImageChecks.
func (h Images) Observe(_ context.Context, _ *corev1.Pod, names []string, _ plan.Objects) plan.ImageStatuses {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	statuses := plan.ImageStatuses{}
	for _, image := range names {
		h.ImageChecks[image]++
		statuses[image] = plan.ImageStatus{Image: h.image(image), Present: h.HasImage[image], Err: h.ImageError}
	}
	return statuses
}

// image returns the image that a name refers to now. The caller holds Mu.
func (h *Host) image(name string) plan.Image {
	return plan.Image{ID: "sha:" + name + h.MovedTags[name], InspectedAt: time.Now()}
}

// Resolve returns the image that a name refers to. It fails with ImageNotFound if the image is not present.
func (h *Host) Resolve(_ context.Context, _ *corev1.Pod, image string, _ plan.Objects) (plan.Image, error) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	if h.Count["resolve "+image]++; !h.HasImage[image] {
		return plan.Image{}, &plan.Error{
			Kind: plan.ImageNotFound, Reason: "CreateContainerError", Err: errors.New("no such image"),
		}
	}
	return h.image(image), nil
}

// --- configure

// CreateDirs creates the directories of a pod.
func (h *Host) CreateDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.call(ctx, "createDirs", name(pod), func() error { h.StateOf(pod.UID).Dirs = true; return nil })
}

// Mount mounts a volume of a pod.
func (h *Host) Mount(ctx context.Context, pod *corev1.Pod, vol, version string, _ plan.Objects, _ []string) error {
	return h.call(ctx, "mount", name(pod)+"/"+vol, func() error {
		h.StateOf(pod.UID).Volumes[vol] = plan.VolumeStatus{Version: version}
		return nil
	})
}

// Project writes a new version of a projected volume.
func (h *Host) Project(ctx context.Context, pod *corev1.Pod, vol, version string, objs plan.Objects, _ []string) error {
	return h.call(ctx, "project", name(pod)+"/"+vol+" "+version, func() error {
		h.StateOf(pod.UID).Volumes[vol] = plan.VolumeStatus{Version: version}
		return nil
	})
}

// Cgroups is the adapter of cgroups.
type Cgroups struct{ h *Host }

// Cgroups returns the adapter of cgroups.
func (h *Host) Cgroups() Cgroups { return Cgroups{h} }

// Exists reports whether the cgroup of a pod exists.
func (c Cgroups) Exists(_ context.Context, pod *corev1.Pod) (bool, error) {
	c.h.Mu.Lock()
	defer c.h.Mu.Unlock()
	return c.h.StateOf(pod.UID).Cgroup, nil
}

// Ensure creates the cgroup of a pod.
func (c Cgroups) Ensure(ctx context.Context, pod *corev1.Pod) error {
	return c.h.call(ctx, "ensureCgroup", name(pod), func() error { c.h.StateOf(pod.UID).Cgroup = true; return nil })
}

// Remove removes the cgroup of a pod.
func (c Cgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	return c.h.call(ctx, "removeCgroup", name(pod), func() error { c.h.StateOf(pod.UID).Cgroup = false; return nil })
}

// --- build-run

// Pull pulls the image of a container.
func (h *Host) Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, _ plan.Objects) (plan.Image, error) {
	var img plan.Image
	err := h.call(
		ctx, "pull", name(pod)+"/"+a.Container,
		func() error { h.HasImage[a.Image], img = true, h.image(a.Image); return nil },
	)
	return img, err
}

// RunSandbox creates a ready sandbox. A second ready sandbox of the pod is a violation.
func (h *Host) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (sb plan.Sandbox, err error) {
	err = h.call(ctx, "runSandbox", name(pod), func() error {
		p := h.StateOf(pod.UID)
		p.Pod = pod
		for _, x := range p.Sandboxes {
			if x.Ready {
				h.violates("pod %s has two ready sandboxes", pod.Name)
			}
		}
		h.n++
		sb = plan.Sandbox{
			ID: fmt.Sprintf("sb%d", h.n), Ready: true, Attempt: s.Attempt, CreatedAt: time.Now(),
			IPs: []string{"10.0.0.1"},
		}
		p.Sandboxes = append([]plan.Sandbox{sb}, p.Sandboxes...)
		h.notify(pod.UID)
		return nil
	})
	return sb, err
}

// StartContainer creates and starts a container. A second live instance is a violation.
func (h *Host) StartContainer(ctx context.Context, pod *corev1.Pod, name string,
	s plan.ContainerConfig) (k plan.Container, err error) {
	err = h.call(ctx, "start", string(pod.UID)+"/"+name, func() error {
		p := h.StateOf(pod.UID)
		for _, x := range p.Containers {
			if x.Name == name && x.Live() {
				h.violates("container %s of pod %s has two live instances", name, pod.UID)
			}
		}
		h.n++
		h.LastContainerConfig = s
		k = plan.Container{
			ID: fmt.Sprintf("k%d", h.n), Name: name, SandboxID: s.Sandbox.ID, State: plan.Running, Attempt: s.Attempt,
			Image: s.Image.ID, SpecHash: podspec.ContainerHash(podspec.FindContainer(pod, name)), CreatedAt: time.Now(),
			StartedAt: time.Now(),
		}
		p.Containers = append([]plan.Container{k}, p.Containers...)
		h.notify(pod.UID)
		if h.Exits != nil {
			if after, code, ok := h.Exits(name); ok {
				time.AfterFunc(after, func() { h.Kill(pod.UID, name, code, false) })
			}
		}
		return nil
	})
	if err != nil {
		return plan.Container{}, err
	}
	return k, nil
}

// EnvFiles returns no environment files.
func (h *Host) EnvFiles(*corev1.Pod, *corev1.Container) plan.EnvFiles { return nil }

// ResizeContainer records the new memory limit of a container.
func (h *Host) ResizeContainer(ctx context.Context, pod *corev1.Pod, name, _ string) error {
	c := podspec.FindContainer(pod, name)
	return h.call(
		ctx, "resize", string(pod.UID)+"/"+name+" "+c.Resources.Limits.Memory().String(),
		func() error { return nil },
	)
}

// ContainerMounts returns VolumeMounts for every container.
func (h *Host) ContainerMounts(context.Context, *corev1.Pod, *corev1.Container, uint32, plan.Objects,
	plan.Sandbox) ([]plan.Mount, error) {
	return slices.Clone(h.VolumeMounts), nil
}

// Run runs a hook, recorded as "hook pod/container".
func (h *Host) Run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, _ *corev1.LifecycleHandler, _ string,
	_ []string) error {
	return h.call(ctx, "hook", string(pod.UID)+"/"+c.Name, func() error { return nil })
}

// --- cleanup

// find returns the pod of a container or sandbox. The caller holds Mu.
func (h *Host) find(id string) (types.UID, *PodState) {
	for uid, p := range h.AllPods {
		for _, k := range p.Containers {
			if k.ID == id {
				return uid, p
			}
		}
		for _, s := range p.Sandboxes {
			if s.ID == id {
				return uid, p
			}
		}
	}
	return "", &PodState{}
}

// StopContainer stops a container. A running container exits with code 137.
func (h *Host) StopContainer(ctx context.Context, id string, grace time.Duration) (out plan.Container, err error) {
	h.Mu.Lock()
	uid, _ := h.find(id)
	h.Mu.Unlock()
	err = h.call(ctx, "stop", string(uid)+"/"+id+" "+grace.String(), func() error {
		uid, p := h.find(id)
		for i := range p.Containers {
			if k := &p.Containers[i]; k.ID == id {
				if k.State == plan.Running {
					k.State, k.ExitCode, k.FinishedAt = plan.Exited, 137, time.Now()
				}
				out = *k
			}
		}
		h.notify(uid)
		return nil
	})
	return out, err
}

// RemoveContainer removes a container. Removing a running container is a violation.
func (h *Host) RemoveContainer(ctx context.Context, id string) error {
	return h.call(ctx, "removeContainer", id, func() error {
		_, p := h.find(id)
		p.Containers = slices.DeleteFunc(slices.Clone(p.Containers), func(k plan.Container) bool {
			if k.ID == id && k.State == plan.Running {
				h.violates("running container %s removed", k.Name)
			}
			return k.ID == id
		})
		return nil
	})
}

// StopSandbox stops a sandbox.
func (h *Host) StopSandbox(ctx context.Context, id string) error {
	return h.call(ctx, "stopSandbox", id, func() error {
		_, p := h.find(id)
		for i := range p.Sandboxes {
			if p.Sandboxes[i].ID == id {
				p.Sandboxes[i].Ready = false
			}
		}
		return nil
	})
}

// RemoveSandbox removes a sandbox with its containers.
func (h *Host) RemoveSandbox(ctx context.Context, id string) error {
	return h.call(ctx, "removeSandbox", id, func() error {
		_, p := h.find(id)
		p.Sandboxes = slices.DeleteFunc(slices.Clone(p.Sandboxes), func(s plan.Sandbox) bool { return s.ID == id })
		p.Containers = slices.DeleteFunc(slices.Clone(p.Containers), func(k plan.Container) bool {
			return k.SandboxID == id
		})
		return nil
	})
}

// Unmount unmounts a volume of a pod. Running containers in the pod are a violation.
func (h *Host) Unmount(ctx context.Context, pod *corev1.Pod, vol string) error {
	return h.call(ctx, "unmount", name(pod)+"/"+vol, func() error {
		if n := len(h.runningContainersOf(pod.UID)); n > 0 {
			h.violates("volume %s unmounted while %d containers are running", vol, n)
		}
		delete(h.StateOf(pod.UID).Volumes, vol)
		return nil
	})
}

func (h *Host) runningContainersOf(uid types.UID) (running []plan.Container) {
	for _, k := range h.StateOf(uid).Containers {
		if k.State == plan.Running {
			running = append(running, k)
		}
	}
	return running
}

// RemoveDirs removes the directories of a pod.
func (h *Host) RemoveDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.call(ctx, "removeDirs", name(pod), func() error { h.StateOf(pod.UID).Dirs = false; return nil })
}

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
