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

// world is a model of one pod's part of a host. One goroutine drives it. Actions finish in a random
// order determined by the seed, and fail depending on hash(seed, action, attempt), so that every run
// can be replayed.
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
	healthy      bool                       // no more faults
	hookRuns     map[plan.ActionKey]hookRun // actual runs by the action of the hook
	restartAllBy string                     // ID of the container whose exit last triggered a new round
	restartAllAt time.Time                  // time of that exit
	// by container name: ID of the instance last stopped for a replacement
	replaced    map[string]string
	sizes       map[string]plan.ContainerResources // actual resources by container ID
	size        plan.Resources                     // actual resources of the pod cgroup
	startedWith map[plan.ActionKey]*corev1.Pod     // the pod at the start of the action
	pod         *corev1.Pod
	violations  []string // violated invariants
}

// hookRun counts the starts and successes of a hook.
type hookRun struct{ started, succeeded int }

func newWorld(seed uint64) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 3)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		replaced: map[string]string{}, sizes: map[string]plan.ContainerResources{},
		startedWith: map[plan.ActionKey]*corev1.Pod{}, hookRuns: map[plan.ActionKey]hookRun{},
		volumes: map[string]plan.VolumeStatus{}, images: map[string]plan.Image{}, attempts: map[plan.ActionKey]uint64{},
	}
	w.pod = w.randomPod()
	return w
}

func (w *world) oneIn(n int) bool { return w.rng.IntN(n) == 0 }

// randomPod returns a random valid pod.
func (w *world) randomPod() *corev1.Pod {
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
		c := w.randomContainer(fmt.Sprintf("init%d", i), s.Volumes)
		if w.oneIn(2) {
			c.RestartPolicy = &always
			w.randomHooks(&c)
		}
		s.InitContainers = append(s.InitContainers, c)
	}
	for i := range 1 + w.rng.IntN(3) {
		c := w.randomContainer(fmt.Sprintf("main%d", i), s.Volumes)
		w.randomHooks(&c)
		s.Containers = append(s.Containers, c)
	}
	if w.oneIn(6) {
		var own []corev1.Volume
		if w.oneIn(2) { // it waits forever without delaying the pod
			own = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "missing"},
				},
			}}}
			s.Volumes = append(s.Volumes, own...)
		}
		e := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(
			w.randomContainer("debug", own))}
		s.EphemeralContainers = append(s.EphemeralContainers, e)
	}
	return pod
}

func (w *world) randomContainer(name string, vols []corev1.Volume) corev1.Container {
	c := corev1.Container{Name: name, Image: fmt.Sprintf("img%d", w.rng.IntN(3))}
	c.ImagePullPolicy = []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent}[w.rng.IntN(2)]
	for _, v := range vols {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return c
}

// randomHooks may add hooks, resources and restart rules to a container.
func (w *world) randomHooks(c *corev1.Container) {
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
		c.Resources = w.randomResources()
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

// randomResources returns random requests and limits, each of which may be missing.
func (w *world) randomResources() corev1.ResourceRequirements {
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

// checkCgroupLimits checks I12: no running container has a higher limit than the pod cgroup has for
// it.
func (w *world) checkCgroupLimits(what string) {
	for _, k := range w.containers {
		actual, known := w.sizes[k.ID]
		if k.State != plan.Running || !known {
			continue
		}
		for name, most := range w.size[k.Name].Limits {
			if q, limited := actual.Resources.Limits[name]; !limited || q.Cmp(most) > 0 {
				w.violated(
					"I12 %s: %s has limit %s of %s (limited: %v), the pod cgroup has %s for it", what, k.Name,
					q.String(),
					name, limited, most.String(),
				)
			}
		}
		for name, most := range w.size[plan.PodLevel].Limits {
			_, own := actual.Resources.Limits[name]
			if q, limited := actual.Inherited[name]; !own && (!limited || q.Cmp(most) > 0) {
				w.violated(
					"I12 %s: %s inherits limit %s of %s (limited: %v), the pod cgroup has %s", what, k.Name,
					q.String(), name, limited, most.String(),
				)
			}
		}
	}
}

// recordExit records that a container has exited by itself.
func (w *world) recordExit(k plan.Container) {
	if c := podspec.FindContainer(w.pod, k.Name); k.ExitCode == 1 && len(c.RestartPolicyRules) > 0 {
		w.restartAllBy, w.restartAllAt = k.ID, k.FinishedAt
	}
}

// recordHookStart records the start of an action if it runs a hook.
func (w *world) recordHookStart(a plan.Action) {
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
		return !w.healthy && w.hash(a, "hang")%3 == 0
	}
	return false
}

// hook completes the run of a hook.
func (w *world) hook(a plan.Action, id string, out *plan.Outcome) {
	k := w.container(id)
	if k == nil || k.State != plan.Running {
		out.Err = errors.New("container is not running")
		return
	}
	h := w.hookRuns[a.Key()]
	h.succeeded++
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

// observation returns the current state as an observation.
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

// hash returns a pseudo-random number that depends only on the seed, the action, its attempt and the
// purpose.
func (w *world) hash(a plan.Action, purpose string) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, w.seed, a.Key(), w.attempts[a.Key()], purpose)
	return h.Sum64() >> 7
}

// finish finishes an action in progress, with or without effect and error.
func (w *world) finish(a plan.Action, canceled bool) plan.Outcome {
	w.attempts[a.Key()]++
	out := plan.Outcome{Action: a, StartedAt: w.now, FinishedAt: w.now}
	fault := uint64(9)
	if !w.healthy {
		fault = w.hash(a, "fault") % 10
	}
	switch {
	case canceled && fault < 5:
		out.Err = &plan.Error{Kind: plan.Canceled, Err: errors.New("canceled")}
		return out
	case canceled: // the call was canceled after it took effect
		w.do(a, &out)
		out.Sandbox, out.Container, out.Image = nil, nil, nil
		out.Err = &plan.Error{Kind: plan.Canceled, Err: errors.New("canceled")}
	case fault == 0:
		out.Err = errors.New("failed")
	case fault == 1: // the deadline was exceeded after the call took effect
		w.do(a, &out)
		out.Sandbox, out.Container, out.Image = nil, nil, nil
		out.Err = &plan.Error{Kind: plan.Timeout, Err: errors.New("deadline exceeded")}
	case fault == 2:
		out.Err = &plan.Error{Kind: plan.Unavailable, Err: errors.New("runtime unavailable")}
	default:
		w.do(a, &out)
	}
	return out
}

// do applies the effect of an action. It checks what must hold at that time, however late it is and
// whatever other actions are in progress.
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
		w.checkCgroupLimits("resize of the pod cgroup")
	case plan.ResizeContainer:
		w.sizes[a.ID] = a.ContainerResources
		w.checkCgroupLimits("resize of a container")
	case plan.MountVolume:
		if !w.dirs {
			w.violated("I2 volume %s mounted before the directories exist", a.Volume)
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
		if _, present := w.images[a.Image]; !present || a.Policy == corev1.PullAlways {
			w.images[a.Image] = plan.Image{ID: "sha:" + a.Image + "@" + id}
		}
		img := w.images[a.Image]
		img.InspectedAt = w.now
		out.Image = &img
	default:
		w.cleanUp(a, out)
	}
}

func (w *world) cleanUp(a plan.Action, out *plan.Outcome) {
	switch a := a.(type) {
	case plan.StopContainer:
		for i := range w.containers {
			if k := &w.containers[i]; k.ID == a.ID {
				if k.Live() {
					// some exit with 0
					k.State, k.FinishedAt, k.ExitCode = plan.Exited, w.now, int32(137*(w.hash(a, "term")%2))
					if a.IsReplacement() && a.Reason != plan.StopReasonRestartAll { // I11 covers a new round
						w.replaced[k.Name] = k.ID
					}
				}
				now := *k
				out.Container = &now
			}
		}
		if out.Container == nil { // removed manually
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
		w.checkNoneRunning("volume " + a.Volume + " unmounted")
		delete(w.volumes, a.Volume)
	case plan.RemoveCgroup:
		w.checkNoneRunning("cgroup removed")
		w.cgroup = false
	case plan.RemoveDirs:
		if len(w.volumes) > 0 || len(w.containers) > 0 {
			w.violated("I2 directories removed with volumes %v and containers %v", w.volumes, w.containers)
		}
		w.dirs = false
	default:
		panic(fmt.Sprintf("unknown action %T", a))
	}
}

func (w *world) checkNoneRunning(what string) {
	for _, k := range w.containers {
		if k.State == plan.Running {
			w.violated("I2 %s while container %s is running", what, k.Name)
		}
	}
}

func (w *world) runSandbox(a plan.RunSandbox, id string, out *plan.Outcome) {
	for _, s := range w.sandboxes {
		if s.Ready {
			w.violated("I4 two ready sandboxes")
		}
		if s.Attempt == a.Attempt {
			w.violated("I4 two sandboxes of attempt %d", a.Attempt)
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
			w.violated("I4 two live instances of %s", a.Name)
		}
		if k.Name == a.Name && k.Attempt == a.Attempt {
			w.violated("I4 two instances of attempt %d of %s", a.Attempt, a.Name)
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
	w.checkPostStartStarted(a)
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
	case w.hash(a, "start")%12 == 0: // created but not started
		k.State, k.StartedAt = plan.Created, time.Time{}
		out.Err = &plan.Error{Kind: plan.Other, Reason: "RunContainerError", Err: errors.New("no such file")}
	case a.Kind == plan.Init && w.hash(a, "init")%3 > 0:
		k.State, k.FinishedAt, k.ExitCode = plan.Exited, w.now, int32(w.hash(a, "code")%3/2)
	}
	if a.Kind == plan.Main || a.Kind == plan.Sidecar {
		w.sizes[id] = plan.ResourcesOf(w.startedWith[a.Key()]).ForContainer(a.Name)
	}
	delete(w.replaced, a.Name)
	w.containers = append([]plan.Container{k}, w.containers...)
	out.Container = &k
}

// checkImage checks that a container whose image is not pulled for each start is created from the
// image that the name refers to. Tags may move and images may be removed.
func (w *world) checkImage(a plan.StartContainer, out *plan.Outcome) {
	c := podspec.FindContainer(w.startedWith[a.Key()], a.Name)
	now, present := w.images[c.Image]
	switch {
	case c.ImagePullPolicy == corev1.PullAlways:
	case a.ResolveImage && !present:
		out.Err, out.MissingImages = &plan.Error{Kind: plan.ImageNotFound, Err: errors.New("no such image")},
			[]string{c.Image}
	case !a.ResolveImage && a.Attempt > 0 && a.Image.ID != now.ID:
		w.violated("%s#%d is created from %s, but %s refers to %s", a.Name, a.Attempt, a.Image.ID, c.Image, now.ID)
	}
}

// checkPostStartStarted checks I9: no container starts before the hook of an earlier one has started.
// The hook may have failed since. Its container is then stopping.
func (w *world) checkPostStartStarted(a plan.StartContainer) {
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

// checkInitsDone checks I7 against the actual state.
func (w *world) checkInitsDone(a plan.StartContainer) {
	for _, k := range w.containers {
		if k.SandboxID == a.SandboxID && containerKind(w.pod, k.Name) == plan.Main {
			return // all init containers of this sandbox are done
		}
	}
	for i := range w.pod.Spec.InitContainers {
		c := &w.pod.Spec.InitContainers[i]
		ok := slices.ContainsFunc(w.containers, func(k plan.Container) bool {
			if k.Name != c.Name || k.SandboxID != a.SandboxID {
				return false
			}
			// A sidecar has started. It may have exited since.
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

// injectFault makes a random change without an action.
func (w *world) injectFault() {
	if len(w.containers) > 0 {
		k := &w.containers[w.rng.IntN(len(w.containers))]
		switch w.rng.IntN(4) {
		case 0, 1:
			if k.State == plan.Running {
				k.State, k.FinishedAt, k.ExitCode = plan.Exited, w.now, int32(w.rng.IntN(2))
				w.recordExit(*k)
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
	case 0: // another image with this name is imported
		w.images[name] = plan.Image{ID: fmt.Sprintf("sha:%s@%d", name, w.rng.IntN(100))}
	case 1:
		delete(w.images, name)
	}
	if w.oneIn(40) && len(w.containers) > 0 { // a dead container is removed manually
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
