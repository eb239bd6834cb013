package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

var t0 = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// driver calls Decide for the life of one pod. A test describes what happens to the pod, and driver
// keeps the state that a worker would keep.
type driver struct {
	in   Input
	last Plan
}

// fresh is a pod that was just admitted to a node with its images.
func fresh(opts ...func(*corev1.Pod)) *driver {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "web", "default", "u1"
	pod.Spec.Containers = []corev1.Container{con("app")}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for _, o := range opts {
		o(pod)
	}
	w := &driver{in: Input{
		Now: t0, Pod: pod, Verdict: Verdict{State: Admitted},
		Observed: Observed{Network: NetworkStatus{Ready: true},
			Images: map[string]Image{"img": {ID: "sha:img", InspectedAt: t0}}},
		Health: map[string]Health{}, InProgress: map[ActionKey]Action{}, Failures: map[ActionKey]Failure{},
		Refs: map[Ref]Version{},
		Limits: Limits{
			CrashBase: 10 * time.Second, CrashMax: 5 * time.Minute, CrashReset: 10 * time.Minute,
			PullBase: 10 * time.Second, PullMax: 5 * time.Minute, RetryBase: time.Second, RetryMax: 30 * time.Second,
			MinStopGrace: 2 * time.Second, HostIPs: []string{"192.0.2.1"}, RuntimeName: "containerd",
		},
	}}
	return w
}

// up is a running pod. Its init containers have succeeded.
func up(opts ...func(*corev1.Pod)) *driver { return fresh(opts...).settle() }

func con(name string, opts ...func(*corev1.Container)) corev1.Container {
	c := corev1.Container{Name: name, Image: "img", ImagePullPolicy: corev1.PullIfNotPresent}
	for _, o := range opts {
		o(&c)
	}
	return c
}

func sidecar(name string, opts ...func(*corev1.Container)) corev1.Container {
	c := con(name, opts...)
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func image(name string) func(*corev1.Container) {
	return func(c *corev1.Container) { c.Image = name }
}

func pulls(p corev1.PullPolicy) func(*corev1.Container) {
	return func(c *corev1.Container) { c.ImagePullPolicy = p }
}

func mounts(volume string) func(*corev1.Container) {
	return func(c *corev1.Container) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: "/" + volume})
	}
}

func inits(cs ...corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.InitContainers = cs }
}

func mains(cs ...corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = cs }
}

func ephemeral(c corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers,
			corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)})
	}
}

func never(p *corev1.Pod)     { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
func onFailure(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }

func configMapVolume(name, cm string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: cm}},
		}})
	}
}

func emptyDir(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{},
		}})
	}
}

// decide calls Decide and keeps the memory. It starts no actions.
func (w *driver) decide() Plan {
	w.last = Decide(w.in)
	w.in.Memory = w.last.Memory
	return w.last
}

// begin decides and starts all actions of the plan.
func (w *driver) begin() *driver {
	p := w.decide()
	for _, a := range p.Actions() {
		w.in.InProgress[a.Key()] = a
	}
	return w
}

// finish finishes all actions in progress successfully, and canceled ones with Canceled.
func (w *driver) finish() *driver {
	for _, k := range slices.SortedFunc(maps.Keys(w.in.InProgress),
		func(a, b ActionKey) int { return strings.Compare(a.String(), b.String()) }) {
		w.ends(k.String(), nil)
	}
	return w
}

// settle starts and finishes actions until none is left.
func (w *driver) settle() *driver {
	for range 100 {
		if w.begin(); len(w.in.InProgress) == 0 {
			return w
		}
		w.finish()
	}
	panic("not idle: " + w.text())
}

// ends finishes the action in progress with the key.
func (w *driver) ends(key string, err error) *driver {
	for k, a := range w.in.InProgress {
		if k.String() != key {
			continue
		}
		delete(w.in.InProgress, k)
		if err == nil && slices.Contains(w.last.Cancel, k) {
			err = &Error{Kind: Canceled, Err: errors.New("called off")}
		}
		out := Outcome{Action: a, StartedAt: w.in.Now, FinishedAt: w.in.Now, Err: err}
		switch {
		case err == nil:
			delete(w.in.Failures, k)
			w.do(a, &out)
		case KindOf(err) == ImageNotFound: // any of the container's images
			c := w.spec(a.(StartContainer).Name)
			out.MissingImages = []string{c.Image}
			for _, v := range newDecider(w.in).imageVolumes(spec{Container: c}) {
				out.MissingImages = append(out.MissingImages, v.Image)
			}
			fallthrough
		case KindOf(err) != Canceled:
			w.in.Failures[k] = FailureOf(out, w.in.Failures[k].Count)
		}
		w.in.Observed = w.in.Observed.After(out)
		return w
	}
	panic("not in progress: " + key)
}

// fails starts the actions of the plan and finishes one with an error.
func (w *driver) fails(key string, e *Error) *driver {
	w.begin()
	return w.ends(key, e)
}

func (w *driver) do(a Action, out *Outcome) {
	now := w.in.Now
	switch a := a.(type) {
	case RunSandbox:
		out.Sandbox = &Sandbox{ID: fmt.Sprint("sb-", a.Attempt), Ready: true, Attempt: a.Attempt, CreatedAt: now,
			IPs: []string{fmt.Sprint("10.0.0.", a.Attempt+1)}}
	case PullImage:
		out.Image = &Image{ID: "sha:" + a.Image, InspectedAt: now}
	case StartContainer:
		c := w.spec(a.Name)
		k := Container{
			ID: fmt.Sprintf("%s-%d", a.Name, a.Attempt), Name: a.Name, SandboxID: a.SandboxID, State: Running,
			Attempt:  a.Attempt,
			SpecHash: podspec.ContainerHash(c), Image: c.Image, ImageID: a.Image.ID, CreatedAt: now, StartedAt: now,
		}
		if a.Kind == Init {
			k.State, k.FinishedAt = Exited, now
		}
		out.Container = &k
	case StopContainer:
		for _, k := range w.in.Observed.Containers {
			if k.ID == a.ID {
				k.State, k.FinishedAt, k.ExitCode = Exited, now, 137
				out.Container = &k
			}
		}
	}
}

func (w *driver) spec(name string) *corev1.Container {
	d := newDecider(w.in)
	for _, c := range d.specs {
		if c.Name == name {
			return c.Container
		}
	}
	panic("no container " + name)
}

// change modifies the newest instance of a container as observed.
func (w *driver) change(name string, f func(*Container)) *driver {
	w.in.Observed.Containers = slices.Clone(w.in.Observed.Containers)
	for i := range w.in.Observed.Containers {
		if w.in.Observed.Containers[i].Name == name {
			f(&w.in.Observed.Containers[i])
			return w
		}
	}
	panic("no instance of " + name)
}

// exit lets the newest instance of a container exit.
func (w *driver) exit(name string, code int32) *driver {
	return w.change(name, func(k *Container) {
		k.State, k.ExitCode, k.FinishedAt = Exited, code, w.in.Now
	})
}

// crash runs one cycle of a crash loop: exit, back-off, restart.
func (w *driver) crash(name string) *driver {
	w.exit(name, 1).begin()
	if !w.last.Wake.IsZero() {
		w.in.Now = w.last.Wake
	}
	return w.settle()
}

func (w *driver) after(d time.Duration) *driver {
	w.in.Now = w.in.Now.Add(d)
	return w
}

func (w *driver) input(f func(*Input)) *driver {
	f(&w.in)
	return w
}

// edit replaces the pod by an edited copy.
func (w *driver) edit(f func(*corev1.Pod)) *driver {
	w.in.Pod = w.in.Pod.DeepCopy()
	f(w.in.Pod)
	return w
}

func (w *driver) terminate(reason string, grace time.Duration) *driver {
	w.in.Termination = &Termination{Reason: reason, Message: "because", Grace: grace, RequestedAt: w.in.Now}
	return w
}

func (w *driver) deleted(grace time.Duration) *driver {
	w.in.Termination = &Termination{Reason: "Deleted", Grace: grace, RequestedAt: w.in.Now, RemovePod: true}
	return w
}

// sandboxLost is the state after the sandbox process was killed.
func (w *driver) sandboxLost() *driver {
	w.in.Observed.Sandboxes = slices.Clone(w.in.Observed.Sandboxes)
	w.in.Observed.Sandboxes[0].Ready = false
	return w
}

// rebooted is the state after a reboot of the node with a new agent.
func (w *driver) rebooted() *driver {
	w.sandboxLost()
	w.in.InProgress, w.in.Failures, w.in.Health = map[ActionKey]Action{}, map[ActionKey]Failure{}, map[string]Health{}
	w.in.Observed.HasCgroup = false
	w.in.Observed.Containers = slices.Clone(w.in.Observed.Containers)
	for i := range w.in.Observed.Containers {
		if k := &w.in.Observed.Containers[i]; k.Live() {
			k.State, k.ExitCode, k.Reason, k.FinishedAt = Exited, 255, "Unknown", w.in.Now
		}
	}
	return w
}

// wantActions checks that the next plan has exactly these actions.
func (w *driver) wantActions(t *testing.T, want string) *driver {
	t.Helper()
	w.decide()
	if got := showActions(w.last); got != want {
		t.Errorf("actions\n got: %s\nwant: %s\n%s", got, want, w.text())
	}
	return w
}

// wantText checks that the text of the last plan contains all parts.
func (w *driver) wantText(t *testing.T, parts ...string) *driver {
	t.Helper()
	text := w.text()
	for _, p := range parts {
		if absent, not := strings.CutPrefix(p, "!"); not && strings.Contains(text, absent) || !not &&
			!strings.Contains(text, p) {
			t.Errorf("unexpected presence or absence of %q in\n%s", p, text)
		}
	}
	return w
}

// testCase checks one decision: the actions planned for the driver's state ("" is unchecked, "-" is
// none) and parts of the plan's text (with ! for parts that it must not contain).
type testCase struct {
	name   string
	driver *driver
	want   string
	text   []string
}

func runCases(t *testing.T, rows []testCase) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			w := r.driver
			if r.want == "" {
				w.decide()
			} else {
				w.wantActions(t, r.want)
			}
			w.wantText(t, r.text...)
		})
	}
}
