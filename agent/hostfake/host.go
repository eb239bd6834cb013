// Package hostfake is a fake host with a container runtime, in memory: the adapters of
// all stages, for the tests of packages agent and agent/pod. It runs on whatever clock
// the test has.
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

// Host is a host with its runtime in memory, for many pods and many
// goroutines, on whatever clock the test has.
type Host struct {
	// Set before use. They get "verb pod/object" and the number of that call.
	Takes func(call string, n int) time.Duration // how long it takes
	Fails func(call string, n int) error         // it fails without effect
	Loses func(call string, n int) error         // it fails after its effect
	Exits func(container string) (after time.Duration, code int32, ok bool)
	// Events is called on every change. Nil: a runtime without events.
	Events func(uid types.UID, sb *plan.Sandbox, ks []plan.Container)

	Mu           sync.Mutex
	AllPods      map[types.UID]*PodState
	HasImage     map[string]bool
	ImageChecks  map[string]int       // for images
	VolumeMounts []plan.Mount         // of every container
	ImageError   string               // why images cannot be inspected; empty: they can
	Retagged     map[string]string    // images whose tags have moved: suffix of the new ID
	LastSetup    plan.ContainerConfig // of the last created container
	Calls        []Call
	Count        map[string]int
	Active       map[string]int // calls in progress, by verb
	MaxActive    map[string]int // the maximum of Active
	n            int
	Violations   []string
	NetworkState plan.NetworkStatus
	ListError    error // of lists of the runtime; nil: they succeed
}

// PodState is what exists of a pod.
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
		Takes:   func(string, int) time.Duration { return time.Millisecond },
		AllPods: map[types.UID]*PodState{}, HasImage: map[string]bool{}, ImageChecks: map[string]int{},
		Retagged: map[string]string{}, Count: map[string]int{},
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

// SetTakes changes how long later calls take.
func (h *Host) SetTakes(f func(string, int) time.Duration) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	h.Takes = f
}

// StateOf returns the state of a pod. The lock is held.
func (h *Host) StateOf(uid types.UID) *PodState {
	if h.AllPods[uid] == nil {
		h.AllPods[uid] = &PodState{Volumes: map[string]plan.VolumeStatus{}}
	}
	return h.AllPods[uid]
}

// act is one call: it takes its time, may fail before or after, and does the
// deed under the lock.
func (h *Host) act(ctx context.Context, verb, on string, deed func() error) error {
	call := verb + " " + on
	h.Mu.Lock()
	h.Count[call]++
	n := h.Count[call]
	h.Calls = append(h.Calls, Call{time.Now(), call})
	h.Active[verb]++
	h.MaxActive[verb] = max(h.MaxActive[verb], h.Active[verb])
	takes := h.Takes
	h.Mu.Unlock()
	defer func() {
		h.Mu.Lock()
		h.Active[verb]--
		h.Mu.Unlock()
	}()
	if !sleep(ctx, takes(call, n)) {
		return &plan.Error{Kind: plan.Canceled, Err: ctx.Err()}
	}
	if h.Fails != nil {
		if err := h.Fails(call, n); err != nil {
			return err
		}
	}
	h.Mu.Lock()
	err := deed()
	h.Mu.Unlock()
	if err == nil && h.Loses != nil {
		err = h.Loses(call, n)
	}
	return err
}

// Happened counts the calls that begin with a text.
func (h *Host) Happened(prefix string) (n int) { return len(h.When(prefix)) }

func (h *Host) When(prefix string) (at []time.Time) {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	for _, c := range h.Calls {
		if len(c.Call) >= len(prefix) && c.Call[:len(prefix)] == prefix {
			at = append(at, c.At)
		}
	}
	return at
}

// AtOnce is the most calls of a verb that were under way together.
func (h *Host) AtOnce(verb string) int {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	return h.MaxActive[verb]
}

// Left describes what exists of a pod; empty: nothing.
func (h *Host) Left(uid types.UID) string {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	p := h.StateOf(uid)
	if len(p.Sandboxes)+len(p.Containers)+len(p.Volumes) == 0 && !p.Dirs && !p.Cgroup {
		return ""
	}
	return fmt.Sprintf("%v %v %v dirs=%v cgroup=%v", p.Sandboxes, p.Containers, p.Volumes, p.Dirs, p.Cgroup)
}

// RunningContainers names the running containers of a pod.
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

// LosePower ends everything that runs, without events.
func (h *Host) LosePower() {
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

// Kill ends a container as its own crash would. It tells unless it is silent.
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

// notify sends an event with the current state of a pod. The lock is held: events are in
// order.
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

func (h *Host) Pod(ctx context.Context, uid types.UID) (sbs []plan.Sandbox, ks []plan.Container, err error) {
	h.Mu.Lock() // what is read is what there was when the call began
	sbs, ks = slices.Clone(h.StateOf(uid).Sandboxes), slices.Clone(h.StateOf(uid).Containers)
	h.Mu.Unlock()
	err = h.act(ctx, "look", string(uid), func() error { return nil })
	return sbs, ks, err
}

func (h *Host) Container(ctx context.Context, id string) (k plan.Container, err error) {
	err = h.act(ctx, "status", id, func() error {
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

func (h *Host) Observe(ctx context.Context, pod *corev1.Pod) (dirs bool, vols map[string]plan.VolumeStatus, err error) {
	err = h.act(ctx, "lookAtHost", name(pod), func() error {
		dirs, vols = h.StateOf(pod.UID).Dirs, maps.Clone(h.StateOf(pod.UID).Volumes)
		return nil
	})
	return dirs, vols, err
}

// Images is the host as the adapter of images.
type Images struct{ *Host }

// Images returns the adapter of images.
func (h *Host) Images() Images { return Images{h} }

func (h Images) Observe(_ context.Context, _ *corev1.Pod, names []string, _ plan.Objects) plan.ImageStatuses {
	h.Mu.Lock()
	defer h.Mu.Unlock()
	seen := plan.ImageStatuses{}
	for _, image := range names {
		h.ImageChecks[image]++
		seen[image] = plan.ImageStatus{Image: h.image(image), Present: h.HasImage[image], Err: h.ImageError}
	}
	return seen
}

// image is what a name stands for now. The lock is held.
func (h *Host) image(name string) plan.Image {
	return plan.Image{ID: "sha:" + name + h.Retagged[name], InspectedAt: time.Now()}
}

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

func (h *Host) CreateDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.act(ctx, "makeDirs", name(pod), func() error { h.StateOf(pod.UID).Dirs = true; return nil })
}

func (h *Host) Mount(ctx context.Context, pod *corev1.Pod, vol, version string, _ plan.Objects, _ []string) error {
	return h.act(ctx, "mount", name(pod)+"/"+vol, func() error {
		h.StateOf(pod.UID).Volumes[vol] = plan.VolumeStatus{Version: version}
		return nil
	})
}

func (h *Host) Project(ctx context.Context, pod *corev1.Pod, vol, version string, objs plan.Objects, _ []string) error {
	return h.act(ctx, "project", name(pod)+"/"+vol+" "+version, func() error {
		h.StateOf(pod.UID).Volumes[vol] = plan.VolumeStatus{Version: version}
		return nil
	})
}

// Cgroups is the host as the adapter of cgroups.
type Cgroups struct{ h *Host }

// Cgroups returns the adapter of cgroups.
func (h *Host) Cgroups() Cgroups { return Cgroups{h} }

func (c Cgroups) Exists(_ context.Context, pod *corev1.Pod) (bool, error) {
	c.h.Mu.Lock()
	defer c.h.Mu.Unlock()
	return c.h.StateOf(pod.UID).Cgroup, nil
}

func (c Cgroups) Ensure(ctx context.Context, pod *corev1.Pod) error {
	return c.h.act(ctx, "makeCgroup", name(pod), func() error { c.h.StateOf(pod.UID).Cgroup = true; return nil })
}

func (c Cgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	return c.h.act(ctx, "removeCgroup", name(pod), func() error { c.h.StateOf(pod.UID).Cgroup = false; return nil })
}

// --- build-run

func (h *Host) Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, _ plan.Objects) (plan.Image, error) {
	var img plan.Image
	err := h.act(
		ctx, "pull", name(pod)+"/"+a.Container,
		func() error { h.HasImage[a.Image], img = true, h.image(a.Image); return nil },
	)
	return img, err
}

func (h *Host) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (sb plan.Sandbox, err error) {
	err = h.act(ctx, "runSandbox", name(pod), func() error {
		p := h.StateOf(pod.UID)
		p.Pod = pod
		for _, x := range p.Sandboxes {
			if x.Ready {
				h.violates("a second live sandbox of %s", pod.Name)
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

func (h *Host) StartContainer(ctx context.Context, pod *corev1.Pod, name string, s plan.ContainerConfig) (k plan.Container, err error) {
	err = h.act(ctx, "start", string(pod.UID)+"/"+name, func() error {
		p := h.StateOf(pod.UID)
		for _, x := range p.Containers {
			if x.Name == name && x.Live() {
				h.violates("a second live %s of %s", name, pod.UID)
			}
		}
		h.n++
		h.LastSetup = s
		k = plan.Container{
			ID: fmt.Sprintf("k%d", h.n), Name: name, SandboxID: s.Sandbox.ID, State: plan.Running, Attempt: s.Attempt,
			Image: s.Image.ID, SpecHash: podspec.ContainerHash(podspec.FindContainer(pod, name)), CreatedAt: time.Now(), StartedAt: time.Now(),
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

func (h *Host) EnvFiles(*corev1.Pod, *corev1.Container) plan.EnvFiles { return nil }

func (h *Host) ResizeContainer(ctx context.Context, pod *corev1.Pod, name, _ string) error {
	c := podspec.FindContainer(pod, name)
	return h.act(
		ctx, "resize", string(pod.UID)+"/"+name+" "+c.Resources.Limits.Memory().String(),
		func() error { return nil },
	)
}

func (h *Host) ContainerMounts(context.Context, *corev1.Pod, *corev1.Container, uint32, plan.Objects, plan.Sandbox) ([]plan.Mount, error) {
	return slices.Clone(h.VolumeMounts), nil
}

// Run runs a hook, recorded as "hook pod/container".
func (h *Host) Run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, _ *corev1.LifecycleHandler, _ string, _ []string) error {
	return h.act(ctx, "hook", string(pod.UID)+"/"+c.Name, func() error { return nil })
}

// --- cleanup

// find returns the pod that has the object. The lock is held.
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

func (h *Host) StopContainer(ctx context.Context, id string, grace time.Duration) (out plan.Container, err error) {
	h.Mu.Lock()
	uid, _ := h.find(id)
	h.Mu.Unlock()
	err = h.act(ctx, "stop", string(uid)+"/"+id+" "+grace.String(), func() error {
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

func (h *Host) RemoveContainer(ctx context.Context, id string) error {
	return h.act(ctx, "removeContainer", id, func() error {
		_, p := h.find(id)
		p.Containers = slices.DeleteFunc(slices.Clone(p.Containers), func(k plan.Container) bool {
			if k.ID == id && k.State == plan.Running {
				h.violates("running %s removed", k.Name)
			}
			return k.ID == id
		})
		return nil
	})
}

func (h *Host) StopSandbox(ctx context.Context, id string) error {
	return h.act(ctx, "stopSandbox", id, func() error {
		_, p := h.find(id)
		for i := range p.Sandboxes {
			if p.Sandboxes[i].ID == id {
				p.Sandboxes[i].Ready = false
			}
		}
		return nil
	})
}

func (h *Host) RemoveSandbox(ctx context.Context, id string) error {
	return h.act(ctx, "removeSandbox", id, func() error {
		_, p := h.find(id)
		p.Sandboxes = slices.DeleteFunc(slices.Clone(p.Sandboxes), func(s plan.Sandbox) bool { return s.ID == id })
		p.Containers = slices.DeleteFunc(slices.Clone(p.Containers), func(k plan.Container) bool { return k.SandboxID == id })
		return nil
	})
}

func (h *Host) Unmount(ctx context.Context, pod *corev1.Pod, vol string) error {
	return h.act(ctx, "unmount", name(pod)+"/"+vol, func() error {
		if names := len(h.liveOf(pod.UID)); names > 0 {
			h.violates("%s unmounted under %d running containers", vol, names)
		}
		delete(h.StateOf(pod.UID).Volumes, vol)
		return nil
	})
}

func (h *Host) liveOf(uid types.UID) (live []plan.Container) {
	for _, k := range h.StateOf(uid).Containers {
		if k.State == plan.Running {
			live = append(live, k)
		}
	}
	return live
}

func (h *Host) RemoveDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.act(ctx, "removeDirs", name(pod), func() error { h.StateOf(pod.UID).Dirs = false; return nil })
}

// Draw is a number that depends on the seed, the call and its turn only.
func Draw(seed int, call string, n int, what string) uint64 {
	f := fnv.New64a()
	fmt.Fprint(f, seed, call, n, what)
	return f.Sum64() >> 9
}

// SetListError has the runtime list nothing, with an error; nil: it is back.
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
