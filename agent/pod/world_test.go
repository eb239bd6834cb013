package pod

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/plan"
	"berth/podspec"
)

// world is a model of one host and one pod's part of it. One goroutine drives
// it: actions begin when a plan asks, end later in an order drawn from the
// seed, and fail by hash(seed, action, attempt), so that every run replays.
type world struct {
	seed         uint64
	rng          *rand.Rand
	now          time.Time
	n            int
	sandboxes    []plan.Sandbox
	containers   []plan.Container
	volumes      map[string]plan.VolumeStatus
	images       map[string]plan.Image
	dirs         bool
	cgroup       bool
	attempts     map[plan.ActionKey]uint64
	healthy      bool                               // no faults any more
	hookRuns     map[plan.ActionKey]hookRun         // by the hook's action: what really happened
	restartAllBy string                             // ID of the container whose exit asked for a new round last
	restartAllAt time.Time                          // when
	replaced     map[string]string                  // by container name: ID of the one that was stopped last to be replaced
	sizes        map[string]plan.ContainerResources // by container ID: what it really has
	size         plan.Resources                     // what the pod's cgroup really has
	startedWith  map[plan.ActionKey]*corev1.Pod     // the pod that an action was started with
	pod          *corev1.Pod
	violations   []string // violated invariants
}

// hookRun is how often a hook has started and has succeeded.
type hookRun struct{ started, ended int }

func newWorld(seed uint64) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 3)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		replaced: map[string]string{}, sizes: map[string]plan.ContainerResources{}, startedWith: map[plan.ActionKey]*corev1.Pod{}, hookRuns: map[plan.ActionKey]hookRun{}, volumes: map[string]plan.VolumeStatus{}, images: map[string]plan.Image{}, attempts: map[plan.ActionKey]uint64{},
	}
	w.pod = w.drawPod()
	return w
}

func (w *world) oneIn(n int) bool { return w.rng.IntN(n) == 0 }

// drawPod makes a pod of any shape that validation would let through.
func (w *world) drawPod() *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "p", "default", "u"
	s := &pod.Spec
	s.RestartPolicy = []corev1.RestartPolicy{
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever,
	}[w.rng.IntN(3)]
	s.HostNetwork = w.oneIn(4)
	if w.oneIn(8) {
		d := int64(60 + w.rng.IntN(600))
		s.ActiveDeadlineSeconds = &d
	}
	if w.oneIn(2) {
		s.Volumes = append(
			s.Volumes,
			corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		)
	}
	if w.oneIn(2) {
		s.Volumes = append(s.Volumes, corev1.Volume{Name: "conf", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}},
		}})
	}
	always := corev1.ContainerRestartPolicyAlways
	for i := range w.rng.IntN(4) {
		c := w.drawContainer(fmt.Sprintf("init%d", i), s.Volumes)
		if w.oneIn(2) {
			c.RestartPolicy = &always
			w.drawHooks(&c)
		}
		s.InitContainers = append(s.InitContainers, c)
	}
	for i := range 1 + w.rng.IntN(3) {
		c := w.drawContainer(fmt.Sprintf("main%d", i), s.Volumes)
		w.drawHooks(&c)
		s.Containers = append(s.Containers, c)
	}
	if w.oneIn(6) {
		var own []corev1.Volume
		if w.oneIn(2) { // it waits for ever, and nothing with it
			own = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "nowhere"}},
			}}}
			s.Volumes = append(s.Volumes, own...)
		}
		e := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(w.drawContainer("debug", own))}
		s.EphemeralContainers = append(s.EphemeralContainers, e)
	}
	return pod
}

func (w *world) drawContainer(name string, vols []corev1.Volume) corev1.Container {
	c := corev1.Container{Name: name, Image: fmt.Sprintf("img%d", w.rng.IntN(3))}
	c.ImagePullPolicy = []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent}[w.rng.IntN(2)]
	for _, v := range vols {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return c
}

// drawHooks gives a container hooks, sometimes.
func (w *world) drawHooks(c *corev1.Container) {
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}
	l := &corev1.Lifecycle{}
	if w.oneIn(3) {
		l.PostStart = hook
	}
	if w.oneIn(3) {
		l.PreStop = hook
	}
	if l.PostStart != nil || l.PreStop != nil {
		c.Lifecycle = l
	}
	if w.oneIn(2) {
		c.Resources = w.drawSize()
		if w.oneIn(3) {
			c.ResizePolicy = []corev1.ContainerResizePolicy{{
				ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer,
			}}
		}
	}
	if w.oneIn(12) {
		if c.RestartPolicy == nil {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyNever)
		}
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{1},
			},
		}}
	}
}

// drawSize is any amounts, each of which may be missing.
func (w *world) drawSize() corev1.ResourceRequirements {
	q := func() corev1.ResourceList {
		if w.oneIn(4) {
			return nil
		}
		list := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(100+w.rng.IntN(5)*100), resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(int64(1+w.rng.IntN(5))<<20, resource.BinarySI),
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			if w.oneIn(5) {
				delete(list, name)
			}
		}
		return list
	}
	return corev1.ResourceRequirements{Requests: q(), Limits: q()}
}

// checkCgroupLimits checks I12: no running container has more than the pod's cgroup holds
// for it.
func (w *world) checkCgroupLimits(what string) {
	for _, k := range w.containers {
		has, sized := w.sizes[k.ID]
		if k.State != plan.Running || !sized {
			continue
		}
		for name, most := range w.size[k.Name].Limits {
			if q, limited := has.Resources.Limits[name]; !limited || q.Cmp(most) > 0 {
				w.violated(
					"I12 %s: %s has %s of %s (limited: %v), the pod's cgroup %s for it", what, k.Name, q.String(),
					name, limited, most.String(),
				)
			}
		}
		for name, most := range w.size[plan.PodLevel].Limits {
			_, own := has.Resources.Limits[name]
			if q, limited := has.Inherited[name]; !own && (!limited || q.Cmp(most) > 0) {
				w.violated(
					"I12 %s: %s has %s of %s from its pod (limited: %v), whose cgroup has %s", what, k.Name,
					q.String(), name, limited, most.String(),
				)
			}
		}
	}
}

// noteExit notes that a container has ended by itself.
func (w *world) noteExit(k plan.Container) {
	if c := podspec.FindContainer(w.pod, k.Name); k.ExitCode == 1 && len(c.RestartPolicyRules) > 0 {
		w.restartAllBy, w.restartAllAt = k.ID, k.FinishedAt
	}
}

// noteHookStart notes that an action has started, if it is a hook.
func (w *world) noteHookStart(a plan.Action) {
	switch a.(type) {
	case plan.PostStart, plan.PreStop:
		h := w.hookRuns[a.Key()]
		h.started++
		w.hookRuns[a.Key()] = h
	}
}

// hangs reports whether a hook runs until it is canceled.
func (w *world) hangs(a plan.Action) bool {
	switch a.(type) {
	case plan.PostStart, plan.PreStop:
		return !w.healthy && w.chance(a, "hang")%3 == 0
	}
	return false
}

// hook runs a hook to its end.
func (w *world) hook(a plan.Action, id string, out *plan.Outcome) {
	k := w.container(id)
	if k == nil || k.State != plan.Running {
		out.Err = errors.New("the container does not run")
		return
	}
	h := w.hookRuns[a.Key()]
	h.ended++
	w.hookRuns[a.Key()] = h
}

func (w *world) container(id string) *plan.Container {
	for i := range w.containers {
		if w.containers[i].ID == id {
			return &w.containers[i]
		}
	}
	return nil
}

// observation is what a look at the host would find.
func (w *world) observation(at uint64, host bool) observation {
	s := observation{
		outcomeSeq: at, runtime: true, host: host,
		sandboxes: slices.Clone(w.sandboxes), containers: slices.Clone(w.containers),
	}
	if host {
		s.dirs, s.cgroup, s.volumes, s.images = w.dirs, w.cgroup, maps.Clone(w.volumes), plan.ImageStatuses{}
	}
	return s
}

func (w *world) violated(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// chance is a draw that depends on the seed, the action and its attempt only.
func (w *world) chance(a plan.Action, what string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, w.seed, a.Key(), w.attempts[a.Key()], what)
	return h.Sum64() >> 7
}

// finish ends an action that was under way: done or not, well or badly.
func (w *world) finish(a plan.Action, canceled bool) plan.Outcome {
	w.attempts[a.Key()]++
	out := plan.Outcome{Action: a, StartedAt: w.now, FinishedAt: w.now}
	fault := uint64(9)
	if !w.healthy {
		fault = w.chance(a, "fault") % 10
	}
	switch {
	case canceled && fault < 5:
		out.Err = &plan.Error{Kind: plan.Canceled, Err: errors.New("called off")}
		return out
	case canceled: // the call was cut off, the deed was done
		w.do(a, &out)
		out.Sandbox, out.Container, out.Image = nil, nil, nil
		out.Err = &plan.Error{Kind: plan.Canceled, Err: errors.New("called off")}
	case fault == 0:
		out.Err = errors.New("no luck")
	case fault == 1: // the deadline passed, the deed was done
		w.do(a, &out)
		out.Sandbox, out.Container, out.Image = nil, nil, nil
		out.Err = &plan.Error{Kind: plan.Timeout, Err: errors.New("deadline exceeded")}
	case fault == 2:
		out.Err = &plan.Error{Kind: plan.Unavailable, Err: errors.New("no runtime")}
	default:
		w.do(a, &out)
	}
	return out
}

// do changes the world. It checks what must hold when an action takes effect,
// however late and in whatever company that is.
func (w *world) do(a plan.Action, out *plan.Outcome) {
	w.n++
	id := fmt.Sprintf("id%d", w.n)
	switch a := a.(type) {
	case plan.CreateDirs:
		w.dirs = true
	case plan.EnsureCgroup:
		w.cgroup, w.size = true, a.Resources
	case plan.ResizeCgroup:
		w.size = a.Resources
		w.checkCgroupLimits("the cgroup's resize")
	case plan.ResizeContainer:
		w.sizes[a.ID] = a.ContainerResources
		w.checkCgroupLimits("a resize")
	case plan.MountVolume:
		if !w.dirs {
			w.violated("I2 volume %s mounted before the directories were made", a.Volume)
		}
		w.volumes[a.Volume] = plan.VolumeStatus{Version: a.Version}
	case plan.ProjectVolume:
		w.volumes[a.Volume] = plan.VolumeStatus{Version: a.Version}
	case plan.RunSandbox:
		w.runSandbox(a, id, out)
	case plan.StartContainer:
		w.startContainer(a, id, out)
	case plan.PostStart:
		w.hook(a, a.ID, out)
	case plan.PreStop:
		w.hook(a, a.ID, out)
	case plan.PullImage:
		if _, here := w.images[a.Image]; !here || a.Policy == corev1.PullAlways {
			w.images[a.Image] = plan.Image{ID: "sha:" + a.Image + "@" + id}
		}
		img := w.images[a.Image]
		img.InspectedAt = w.now
		out.Image = &img
	default:
		w.undo(a, out)
	}
}

func (w *world) undo(a plan.Action, out *plan.Outcome) {
	switch a := a.(type) {
	case plan.StopContainer:
		for i := range w.containers {
			if k := &w.containers[i]; k.ID == a.ID {
				if k.Live() {
					k.State, k.FinishedAt, k.ExitCode = plan.Exited, w.now, int32(137*(w.chance(a, "term")%2)) // some exit with 0
					if a.IsReplacement() && a.Reason != plan.StopReasonRestartAll {                            // a new round is checked by I11
						w.replaced[k.Name] = k.ID
					}
				}
				now := *k
				out.Container = &now
			}
		}
		if out.Container == nil { // removed by hand
			out.Err = &plan.Error{Kind: plan.NotFound, Err: errors.New("no such container")}
		}
	case plan.RemoveContainer:
		w.containers = drop(w.containers, func(k plan.Container) bool {
			if k.ID == a.ID && (k.State == plan.Running || k.State == plan.Unknown) {
				w.violated("I2 running container %s removed", k.Name)
			}
			return k.ID == a.ID
		})
	case plan.StopSandbox:
		for i := range w.sandboxes {
			if w.sandboxes[i].ID == a.ID {
				w.sandboxes[i].Ready = false
			}
		}
	case plan.RemoveSandbox:
		w.sandboxes = drop(w.sandboxes, func(s plan.Sandbox) bool { return s.ID == a.ID })
		w.containers = drop(w.containers, func(k plan.Container) bool { return k.SandboxID == a.ID })
	case plan.UnmountVolume:
		w.noneLive("volume " + a.Volume + " unmounted")
		delete(w.volumes, a.Volume)
	case plan.RemoveCgroup:
		w.noneLive("cgroup removed")
		w.cgroup = false
	case plan.RemoveDirs:
		if len(w.volumes) > 0 || len(w.containers) > 0 {
			w.violated("I2 directories removed under %v %v", w.volumes, w.containers)
		}
		w.dirs = false
	default:
		panic(fmt.Sprintf("the world cannot %T", a))
	}
}

func (w *world) noneLive(what string) {
	for _, k := range w.containers {
		if k.State == plan.Running {
			w.violated("I2 %s under running container %s", what, k.Name)
		}
	}
}

func (w *world) runSandbox(a plan.RunSandbox, id string, out *plan.Outcome) {
	for _, s := range w.sandboxes {
		if s.Ready {
			w.violated("I4 a second live sandbox")
		}
		if s.Attempt == a.Attempt {
			w.violated("I4 a second sandbox of attempt %d", a.Attempt)
		}
	}
	s := plan.Sandbox{ID: id, Ready: true, Attempt: a.Attempt, CreatedAt: w.now, IPs: []string{"10.0.0.1"}}
	w.sandboxes = append([]plan.Sandbox{s}, w.sandboxes...)
	out.Sandbox = &s
}

func (w *world) startContainer(a plan.StartContainer, id string, out *plan.Outcome) {
	spec := podspec.FindContainer(w.pod, a.Name)
	for _, k := range w.containers {
		if k.Name == a.Name && k.Live() {
			w.violated("I4 second live %s", a.Name)
		}
		if k.Name == a.Name && k.Attempt == a.Attempt {
			w.violated("I4 second attempt %d of %s", a.Attempt, a.Name)
		}
	}
	i := slices.IndexFunc(w.sandboxes, func(s plan.Sandbox) bool { return s.ID == a.SandboxID })
	if i < 0 || !w.sandboxes[i].Ready {
		out.Err = &plan.Error{Kind: plan.NotFound, Err: errors.New("no such sandbox")}
		return
	}
	if a.Kind == plan.Main {
		w.checkInitsDone(a)
	}
	w.checkPostStartBegan(a)
	if w.checkImage(a, out); out.Err != nil {
		return
	}
	k := plan.Container{
		ID: id, Name: a.Name, SandboxID: a.SandboxID, State: plan.Running, Attempt: a.Attempt, Image: spec.Image,
		SpecHash: podspec.ContainerHash(spec), CreatedAt: w.now, StartedAt: w.now,
	}
	switch {
	case w.healthy && a.Kind == plan.Init:
		k.State, k.FinishedAt = plan.Exited, w.now
	case w.healthy:
	case w.chance(a, "start")%12 == 0: // created, not started
		k.State, k.StartedAt = plan.Created, time.Time{}
		out.Err = &plan.Error{Kind: plan.Other, Reason: "RunContainerError", Err: errors.New("no such file")}
	case a.Kind == plan.Init && w.chance(a, "init")%3 > 0:
		k.State, k.FinishedAt, k.ExitCode = plan.Exited, w.now, int32(w.chance(a, "code")%3/2)
	}
	if a.Kind == plan.Main || a.Kind == plan.Sidecar {
		w.sizes[id] = plan.ResourcesOf(w.startedWith[a.Key()]).ForContainer(a.Name)
	}
	delete(w.replaced, a.Name)
	w.containers = append([]plan.Container{k}, w.containers...)
	out.Container = &k
}

// checkImage checks that a container of an image that is not pulled for each start is
// made of what its name stands for: the name moves, and the image goes.
func (w *world) checkImage(a plan.StartContainer, out *plan.Outcome) {
	c := podspec.FindContainer(w.startedWith[a.Key()], a.Name)
	now, here := w.images[c.Image]
	switch {
	case c.ImagePullPolicy == corev1.PullAlways:
	case a.ResolveImage && !here:
		out.Err, out.MissingImages = &plan.Error{Kind: plan.ImageNotFound, Err: errors.New("no such image")}, []string{c.Image}
	case !a.ResolveImage && a.Attempt > 0 && a.Image.ID != now.ID:
		w.violated("%s#%d is made of %s, and %s is %s", a.Name, a.Attempt, a.Image.ID, c.Image, now.ID)
	}
}

// checkPostStartBegan checks I9: no container starts before the hook of an earlier one
// has started. A hook that has started may have failed, then its container is stopping.
func (w *world) checkPostStartBegan(a plan.StartContainer) {
	for _, k := range w.containers {
		c := podspec.FindContainer(w.pod, k.Name)
		if k.State != plan.Running || k.SandboxID != a.SandboxID || c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
			continue
		}
		if w.hookRuns[plan.PostStart{ID: k.ID}.Key()].started == 0 {
			w.violated("I9 %s started before the postStart hook of %s", a.Name, k.Name)
		}
	}
}

// checkInitsDone checks I7 against the truth.
func (w *world) checkInitsDone(a plan.StartContainer) {
	for _, k := range w.containers {
		if k.SandboxID == a.SandboxID && containerKind(w.pod, k.Name) == plan.Main {
			return // the init chain is behind this sandbox
		}
	}
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		ok := slices.ContainsFunc(w.containers, func(k plan.Container) bool {
			if k.Name != c.Name || k.SandboxID != a.SandboxID {
				return false
			}
			// A sidecar had started; that it has ended since is its own matter.
			return c.RestartPolicy != nil || k.State == plan.Exited && k.ExitCode == 0
		})
		if !ok {
			w.violated("I7 %s started before %s was done", a.Name, c.Name)
		}
	}
}

func containerKind(pod *corev1.Pod, name string) plan.ContainerKind {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return plan.Main
		}
	}
	return plan.Init
}

// injectFault changes something without an action.
func (w *world) injectFault() {
	if len(w.containers) > 0 {
		k := &w.containers[w.rng.IntN(len(w.containers))]
		switch w.rng.IntN(4) {
		case 0, 1:
			if k.State == plan.Running {
				k.State, k.FinishedAt, k.ExitCode = plan.Exited, w.now, int32(w.rng.IntN(2))
				w.noteExit(*k)
			}
		case 2:
			if k.State == plan.Running {
				k.State = plan.Unknown
			}
		}
	}
	if len(w.sandboxes) > 0 && w.oneIn(6) {
		w.sandboxes[0].Ready = false
	}
	switch name := fmt.Sprintf("img%d", w.rng.IntN(5)); w.rng.IntN(4) {
	case 0: // another image is imported under that name
		w.images[name] = plan.Image{ID: fmt.Sprintf("sha:%s@%d", name, w.rng.IntN(100))}
	case 1:
		delete(w.images, name)
	}
	if w.oneIn(40) && len(w.containers) > 0 { // a dead container is removed by hand
		i := w.rng.IntN(len(w.containers))
		if w.containers[i].State == plan.Exited && containerKind(w.pod, w.containers[i].Name) == plan.Main {
			if w.containers[i].ID == w.restartAllBy {
				w.restartAllBy = "" // its exit may not have been observed
			}
			w.containers = slices.Delete(w.containers, i, i+1)
		}
	}
}

func drop[T any](s []T, f func(T) bool) (out []T) {
	for _, x := range s {
		if !f(x) {
			out = append(out, x)
		}
	}
	return out
}
