package agent

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

// fakeHost is a host with its runtime in memory, for many pods and many
// goroutines, on whatever clock the test has.
type fakeHost struct {
	boot   string      // ID of the kernel that runs
	alone  bool        // the node has no server
	slots  int         // pods that start at once; zero: 10
	prober *fakeProber // nil: nobody probes
	// Set before use. They get "verb pod/object" and which time it is.
	takes  func(call string, n int) time.Duration
	fails  func(call string, n int) error // nothing was done
	loses  func(call string, n int) error // it was done, but nobody is told
	exits  func(container string) (after time.Duration, code int32, ok bool)
	events func(types.UID, RuntimeEvent) // told of every change; nil: a runtime without events

	mu      sync.Mutex
	pods    map[types.UID]*fakePod
	images  map[string]bool
	asked   map[string]int      // for images
	mounts  []plan.Mount        // of every container
	unclear string              // why it cannot be told which images are here; empty: it can
	moved   map[string]string   // images whose names stand for others than at first: which
	setup   plan.ContainerSetup // of the container that was made last
	calls   []fakeCall
	count   map[string]int
	now     map[string]int // calls under way, by verb
	most    map[string]int // the most of them at once
	n       int
	broken  []string
	network plan.NetworkSeen
	down    error // the runtime lists nothing
}

type fakePod struct {
	pod        *corev1.Pod
	sandboxes  []plan.Sandbox
	containers []plan.Container
	volumes    map[string]plan.VolumeSeen
	dirs       bool
	cgroup     bool
}

type fakeCall struct {
	At   time.Time
	Call string
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		takes: func(string, int) time.Duration { return time.Millisecond },
		pods:  map[types.UID]*fakePod{}, images: map[string]bool{}, asked: map[string]int{}, moved: map[string]string{}, count: map[string]int{},
		now: map[string]int{}, most: map[string]int{}, network: plan.NetworkSeen{Ready: true},
	}
}

func (h *fakeHost) stages() *Stages {
	return &Stages{
		Prepare:   Prepare{Runtime: h, Host: h, Cgroups: fakeCgroups{h}, Images: fakeImages{h}, Network: h.netState},
		Configure: Configure{Dirs: h, Volumes: h, Cgroups: fakeCgroups{h}},
		Cleanup:   Cleanup{Containers: h, Sandboxes: h, Host: h, Hooks: h, Cgroups: fakeCgroups{h}},
		BuildRun: BuildRun{
			Images: h, Runtime: h, Mounts: h, Hooks: h, CgroupParent: func(*corev1.Pod) string { return "" },
			LogDir: func(*corev1.Pod) string { return "/logs" }, Allocatable: func() corev1.ResourceList { return nil },
		},
	}
}

func (h *fakeHost) netState() plan.NetworkSeen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.network
}

func (h *fakeHost) setNetwork(n plan.NetworkSeen) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.network = n
}

// setTakes changes how long calls take that begin from now on.
func (h *fakeHost) setTakes(f func(string, int) time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.takes = f
}

// of returns what there is of a pod. The lock is held.
func (h *fakeHost) of(uid types.UID) *fakePod {
	if h.pods[uid] == nil {
		h.pods[uid] = &fakePod{volumes: map[string]plan.VolumeSeen{}}
	}
	return h.pods[uid]
}

// act is one call: it takes its time, may fail before or after, and does the
// deed under the lock.
func (h *fakeHost) act(ctx context.Context, verb, on string, deed func() error) error {
	call := verb + " " + on
	h.mu.Lock()
	h.count[call]++
	n := h.count[call]
	h.calls = append(h.calls, fakeCall{time.Now(), call})
	h.now[verb]++
	h.most[verb] = max(h.most[verb], h.now[verb])
	takes := h.takes
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.now[verb]--
		h.mu.Unlock()
	}()
	if !pause(ctx, takes(call, n)) {
		return &plan.Error{Kind: plan.Canceled, Err: ctx.Err()}
	}
	if h.fails != nil {
		if err := h.fails(call, n); err != nil {
			return err
		}
	}
	h.mu.Lock()
	err := deed()
	h.mu.Unlock()
	if err == nil && h.loses != nil {
		err = h.loses(call, n)
	}
	return err
}

// happened counts the calls that begin with a text.
func (h *fakeHost) happened(prefix string) (n int) { return len(h.when(prefix)) }

func (h *fakeHost) when(prefix string) (at []time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.calls {
		if len(c.Call) >= len(prefix) && c.Call[:len(prefix)] == prefix {
			at = append(at, c.At)
		}
	}
	return at
}

// atOnce is the most calls of a verb that were under way together.
func (h *fakeHost) atOnce(verb string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most[verb]
}

// left says what there is of a pod; empty: nothing.
func (h *fakeHost) left(uid types.UID) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.of(uid)
	if len(p.sandboxes)+len(p.containers)+len(p.volumes) == 0 && !p.dirs && !p.cgroup {
		return ""
	}
	return fmt.Sprintf("%v %v %v dirs=%v cgroup=%v", p.sandboxes, p.containers, p.volumes, p.dirs, p.cgroup)
}

// running names the running containers of a pod.
func (h *fakeHost) running(uid types.UID) (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.of(uid).containers {
		if k.State == plan.Running {
			names = append(names, k.Name)
		}
	}
	slices.Sort(names)
	return names
}

// losePower ends all that runs, and tells nobody.
func (h *fakeHost) losePower() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pods {
		for i := range p.sandboxes {
			p.sandboxes[i].Ready = false
		}
		for i := range p.containers {
			if k := &p.containers[i]; k.State == plan.Running {
				k.State, k.ExitCode, k.FinishedAt = plan.Exited, 255, time.Now()
			}
		}
		p.cgroup = false
	}
}

// kill ends a container as its own crash would. It tells unless it is silent.
func (h *fakeHost) kill(uid types.UID, name string, code int32, silent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.of(uid)
	for i := range p.containers {
		if k := &p.containers[i]; k.Name == name && k.State == plan.Running {
			k.State, k.ExitCode, k.FinishedAt = plan.Exited, code, time.Now()
		}
	}
	if !silent {
		h.tell(uid)
	}
}

// tell tells of a pod as it is. The lock is held: hints come in order.
func (h *fakeHost) tell(uid types.UID) {
	if h.events == nil {
		return
	}
	p := h.of(uid)
	hint := RuntimeEvent{Containers: slices.Clone(p.containers)}
	if len(p.sandboxes) == 0 {
		return
	}
	sb := p.sandboxes[0]
	hint.Sandbox = &sb
	h.events(uid, hint)
}

func (h *fakeHost) breaks(format string, args ...any) {
	h.broken = append(h.broken, fmt.Sprintf(format, args...))
}

func name(pod *corev1.Pod) string { return string(pod.UID) }

// --- prepare

func (h *fakeHost) Pod(ctx context.Context, uid types.UID) (sbs []plan.Sandbox, ks []plan.Container, err error) {
	h.mu.Lock() // what is read is what there was when the call began
	sbs, ks = slices.Clone(h.of(uid).sandboxes), slices.Clone(h.of(uid).containers)
	h.mu.Unlock()
	err = h.act(ctx, "look", string(uid), func() error { return nil })
	return sbs, ks, err
}

func (h *fakeHost) Container(ctx context.Context, id string) (k plan.Container, err error) {
	err = h.act(ctx, "status", id, func() error {
		for _, p := range h.pods {
			for _, x := range p.containers {
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

func (h *fakeHost) Observe(ctx context.Context, pod *corev1.Pod) (dirs bool, vols map[string]plan.VolumeSeen, err error) {
	err = h.act(ctx, "lookAtHost", name(pod), func() error {
		dirs, vols = h.of(pod.UID).dirs, maps.Clone(h.of(pod.UID).volumes)
		return nil
	})
	return dirs, vols, err
}

// fakeImages is the host's image store.
type fakeImages struct{ *fakeHost }

func (h fakeImages) Observe(_ context.Context, _ *corev1.Pod, names []string, _ plan.Objects) plan.ImagesSeen {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := plan.ImagesSeen{}
	for _, image := range names {
		h.asked[image]++
		seen[image] = plan.ImageSeen{Image: h.image(image), Here: h.images[image], Unclear: h.unclear}
	}
	return seen
}

// image is what a name stands for now. The lock is held.
func (h *fakeHost) image(name string) plan.Image {
	return plan.Image{ID: "sha:" + name + h.moved[name], At: time.Now()}
}

func (h *fakeHost) Resolve(_ context.Context, _ *corev1.Pod, image string, _ plan.Objects) (plan.Image, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count["resolve "+image]++; !h.images[image] {
		return plan.Image{}, &plan.Error{Kind: plan.ImageGone, Reason: "CreateContainerError", Err: errors.New("no such image")}
	}
	return h.image(image), nil
}

// --- configure

func (h *fakeHost) MakeDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.act(ctx, "makeDirs", name(pod), func() error { h.of(pod.UID).dirs = true; return nil })
}

func (h *fakeHost) Mount(ctx context.Context, pod *corev1.Pod, vol, version string, _ plan.Objects, _ []string) error {
	return h.act(ctx, "mount", name(pod)+"/"+vol, func() error {
		h.of(pod.UID).volumes[vol] = plan.VolumeSeen{Version: version}
		return nil
	})
}

func (h *fakeHost) Project(ctx context.Context, pod *corev1.Pod, vol, version string, objs plan.Objects, _ []string) error {
	return h.act(ctx, "project", name(pod)+"/"+vol+" "+version, func() error {
		h.of(pod.UID).volumes[vol] = plan.VolumeSeen{Version: version}
		return nil
	})
}

type fakeCgroups struct{ h *fakeHost }

func (c fakeCgroups) Exists(_ context.Context, pod *corev1.Pod) (bool, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	return c.h.of(pod.UID).cgroup, nil
}

func (c fakeCgroups) Ensure(ctx context.Context, pod *corev1.Pod) error {
	return c.h.act(ctx, "makeCgroup", name(pod), func() error { c.h.of(pod.UID).cgroup = true; return nil })
}

func (c fakeCgroups) Remove(ctx context.Context, pod *corev1.Pod) error {
	return c.h.act(ctx, "removeCgroup", name(pod), func() error { c.h.of(pod.UID).cgroup = false; return nil })
}

// --- build-run

func (h *fakeHost) Pull(ctx context.Context, pod *corev1.Pod, a plan.PullImage, _ plan.Objects) (plan.Image, error) {
	var img plan.Image
	err := h.act(ctx, "pull", name(pod)+"/"+a.Container, func() error { h.images[a.Image], img = true, h.image(a.Image); return nil })
	return img, err
}

func (h *fakeHost) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxSetup) (sb plan.Sandbox, err error) {
	err = h.act(ctx, "runSandbox", name(pod), func() error {
		p := h.of(pod.UID)
		p.pod = pod
		for _, x := range p.sandboxes {
			if x.Ready {
				h.breaks("a second live sandbox of %s", pod.Name)
			}
		}
		h.n++
		sb = plan.Sandbox{ID: fmt.Sprintf("sb%d", h.n), Ready: true, Attempt: s.Attempt, CreatedAt: time.Now(), IPs: []string{"10.0.0.1"}}
		p.sandboxes = append([]plan.Sandbox{sb}, p.sandboxes...)
		h.tell(pod.UID)
		return nil
	})
	return sb, err
}

func (h *fakeHost) StartContainer(ctx context.Context, pod *corev1.Pod, name string, s plan.ContainerSetup) (k plan.Container, err error) {
	err = h.act(ctx, "start", string(pod.UID)+"/"+name, func() error {
		p := h.of(pod.UID)
		for _, x := range p.containers {
			if x.Name == name && x.Live() {
				h.breaks("a second live %s of %s", name, pod.UID)
			}
		}
		h.n++
		h.setup = s
		k = plan.Container{
			ID: fmt.Sprintf("k%d", h.n), Name: name, SandboxID: s.Sandbox.ID, State: plan.Running, Attempt: s.Attempt,
			Image: s.Image.ID, SpecHash: podspec.ContainerHash(podspec.FindContainer(pod, name)), CreatedAt: time.Now(), StartedAt: time.Now(),
		}
		p.containers = append([]plan.Container{k}, p.containers...)
		h.tell(pod.UID)
		if h.exits != nil {
			if after, code, ok := h.exits(name); ok {
				time.AfterFunc(after, func() { h.kill(pod.UID, name, code, false) })
			}
		}
		return nil
	})
	if err != nil {
		return plan.Container{}, err
	}
	return k, nil
}

func (h *fakeHost) EnvFiles(*corev1.Pod, *corev1.Container) plan.EnvFiles { return nil }

func (h *fakeHost) ResizeContainer(ctx context.Context, pod *corev1.Pod, name, _ string) error {
	c := podspec.FindContainer(pod, name)
	return h.act(ctx, "resize", string(pod.UID)+"/"+name+" "+c.Resources.Limits.Memory().String(), func() error { return nil })
}

func (h *fakeHost) ContainerMounts(context.Context, *corev1.Pod, *corev1.Container, uint32, plan.Objects, plan.Sandbox) ([]plan.Mount, error) {
	return slices.Clone(h.mounts), nil
}

// Run runs a hook, told as "hook pod/container".
func (h *fakeHost) Run(ctx context.Context, pod *corev1.Pod, c *corev1.Container, _ *corev1.LifecycleHandler, _ string, _ []string) error {
	return h.act(ctx, "hook", string(pod.UID)+"/"+c.Name, func() error { return nil })
}

// --- cleanup

// find returns the pod that has the object. The lock is held.
func (h *fakeHost) find(id string) (types.UID, *fakePod) {
	for uid, p := range h.pods {
		for _, k := range p.containers {
			if k.ID == id {
				return uid, p
			}
		}
		for _, s := range p.sandboxes {
			if s.ID == id {
				return uid, p
			}
		}
	}
	return "", &fakePod{}
}

func (h *fakeHost) StopContainer(ctx context.Context, id string, grace time.Duration) (out plan.Container, err error) {
	h.mu.Lock()
	uid, _ := h.find(id)
	h.mu.Unlock()
	err = h.act(ctx, "stop", string(uid)+"/"+id+" "+grace.String(), func() error {
		uid, p := h.find(id)
		for i := range p.containers {
			if k := &p.containers[i]; k.ID == id {
				if k.State == plan.Running {
					k.State, k.ExitCode, k.FinishedAt = plan.Exited, 137, time.Now()
				}
				out = *k
			}
		}
		h.tell(uid)
		return nil
	})
	return out, err
}

func (h *fakeHost) RemoveContainer(ctx context.Context, id string) error {
	return h.act(ctx, "removeContainer", id, func() error {
		_, p := h.find(id)
		p.containers = slices.DeleteFunc(slices.Clone(p.containers), func(k plan.Container) bool {
			if k.ID == id && k.State == plan.Running {
				h.breaks("running %s removed", k.Name)
			}
			return k.ID == id
		})
		return nil
	})
}

func (h *fakeHost) StopSandbox(ctx context.Context, id string) error {
	return h.act(ctx, "stopSandbox", id, func() error {
		_, p := h.find(id)
		for i := range p.sandboxes {
			if p.sandboxes[i].ID == id {
				p.sandboxes[i].Ready = false
			}
		}
		return nil
	})
}

func (h *fakeHost) RemoveSandbox(ctx context.Context, id string) error {
	return h.act(ctx, "removeSandbox", id, func() error {
		_, p := h.find(id)
		p.sandboxes = slices.DeleteFunc(slices.Clone(p.sandboxes), func(s plan.Sandbox) bool { return s.ID == id })
		p.containers = slices.DeleteFunc(slices.Clone(p.containers), func(k plan.Container) bool { return k.SandboxID == id })
		return nil
	})
}

func (h *fakeHost) Unmount(ctx context.Context, pod *corev1.Pod, vol string) error {
	return h.act(ctx, "unmount", name(pod)+"/"+vol, func() error {
		if names := len(h.liveOf(pod.UID)); names > 0 {
			h.breaks("%s unmounted under %d running containers", vol, names)
		}
		delete(h.of(pod.UID).volumes, vol)
		return nil
	})
}

func (h *fakeHost) liveOf(uid types.UID) (live []plan.Container) {
	for _, k := range h.of(uid).containers {
		if k.State == plan.Running {
			live = append(live, k)
		}
	}
	return live
}

func (h *fakeHost) RemoveDirs(ctx context.Context, pod *corev1.Pod) error {
	return h.act(ctx, "removeDirs", name(pod), func() error { h.of(pod.UID).dirs = false; return nil })
}

// drawn is a number that depends on the seed, the call and its turn only.
func drawn(seed int, call string, n int, what string) uint64 {
	f := fnv.New64a()
	fmt.Fprint(f, seed, call, n, what)
	return f.Sum64() >> 9
}
