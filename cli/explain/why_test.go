package explain

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
	"berth/nodeapi"
	"berth/podspec"
)

var (
	t0     = time.Date(2026, 5, 4, 15, 4, 5, 0, time.UTC)
	limits = plan.Limits{
		CrashBase: 10 * time.Second, CrashMax: 5 * time.Minute, CrashReset: 10 * time.Minute,
		PullBase: 10 * time.Second, PullMax: 5 * time.Minute, RetryBase: time.Second, RetryMax: 30 * time.Second,
		RecreateBase: time.Minute, RecreateMax: 10 * time.Minute,
		MinStopGrace: 2 * time.Second, RuntimeName: "containerd", Probing: true,
	}
)

// simulatedPod is a pod on a simulated node. Its methods do the work of a pod worker.
type simulatedPod struct{ simulation }

func pod(opts ...func(*corev1.Pod)) *simulatedPod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "u1"}}
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	p.Spec.Containers = []corev1.Container{{Name: "a", Image: "img", ImagePullPolicy: corev1.PullIfNotPresent}}
	for _, o := range opts {
		o(p)
	}
	return &simulatedPod{simulation{in: plan.Input{
		Now: t0, Pod: p, Verdict: plan.Verdict{State: plan.Admitted}, Limits: limits,
		Observed: plan.Observed{
			Network: plan.NetworkStatus{Ready: true},
			Images:  map[string]plan.Image{"img": {ID: "sha:img"}},
		},
		InProgress: map[plan.ActionKey]plan.Action{}, Failures: map[plan.ActionKey]plan.Failure{},
	}}}
}

func image(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Image = name }
}

func policy(x corev1.RestartPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.RestartPolicy = x }
}

func inits(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, n := range names {
			p.Spec.InitContainers = append(
				p.Spec.InitContainers,
				corev1.Container{Name: n, Image: "img", ImagePullPolicy: corev1.PullIfNotPresent},
			)
		}
	}
}

func configMapEnv(p *corev1.Pod) {
	p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}},
	}
}

func configMapVolume(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{
		{
			Name: "v",
			VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "conf"},
				},
			},
		},
	}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
}

// settle executes actions until there are none left.
func (w *simulatedPod) settle() *simulatedPod {
	for range 50 {
		p := plan.Decide(w.in)
		w.in.Memory = p.Memory
		if len(p.Actions()) == 0 {
			return w
		}
		for _, a := range p.Actions() {
			w.succeed(a)
		}
	}
	panic("the simulation does not converge")
}

// waitingForDevices makes container a wait for devices.
func (w *simulatedPod) waitingForDevices(why string) *simulatedPod {
	w.in.Observed.Devices = map[string]plan.DeviceStatus{"a": {Pending: why}}
	return w
}

func (w *simulatedPod) after(d time.Duration) *simulatedPod { w.in.Now = w.in.Now.Add(d); return w }

// exit terminates the running instance of a container.
func (w *simulatedPod) exit(name string, code int32) *simulatedPod {
	k, _ := newest(w.in.Observed, name)
	k.State, k.ExitCode, k.FinishedAt = plan.Exited, code, w.in.Now
	w.in.Observed = w.in.Observed.WithContainer(k)
	p := plan.Decide(w.in) // count the exit
	w.in.Memory = p.Memory
	return w
}

// start starts all planned actions.
func (w *simulatedPod) start() *simulatedPod {
	p := plan.Decide(w.in)
	w.in.Memory = p.Memory
	for _, a := range p.Actions() {
		w.in.InProgress[a.Key()] = a
	}
	return w
}

// fail fails the action in progress with this key. It is the count-th consecutive failure.
func (w *simulatedPod) fail(key string, count int, err error) *simulatedPod {
	for k, a := range w.in.InProgress {
		if k.String() == key {
			delete(w.in.InProgress, k)
			w.in.Failures[k] = plan.FailureOf(plan.Outcome{Action: a, FinishedAt: w.in.Now, Err: err}, count-1)
		}
	}
	return w
}

// complete completes all actions in progress except the one with the given key.
func (w *simulatedPod) complete(but string) *simulatedPod {
	for k, a := range w.in.InProgress {
		if k.String() != but {
			w.succeed(a)
		}
	}
	return w
}

// subject returns the state that a worker would publish after its next sync.
func (w *simulatedPod) subject() PodState {
	p := plan.Decide(w.in)
	s := PodState{
		Pod: w.in.Pod, Status: p.Status, Termination: p.Memory.Termination, Verdict: w.in.Verdict,
		Observed: w.in.Observed,
		Failed:   w.in.Failures, Refs: w.in.Refs,
		Memory: p.Memory, Syncs: 1, LastSync: w.in.Now, NextSync: p.Wake, Limits: w.in.Limits,
	}
	for _, r := range p.Reasons {
		s.Reasons = append(s.Reasons, TimedReason{r, w.in.Now})
	}
	for _, a := range w.in.InProgress {
		s.InProgress = append(s.InProgress, Operation{Action: a, Since: w.in.Now})
	}
	for _, a := range p.Actions() { // started by this sync
		s.InProgress = append(s.InProgress, Operation{Action: a, Since: w.in.Now})
	}
	return s
}

func at(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(" @%s", t.Sub(t0))
}

func waitText(w nodeapi.WaitReason) string {
	out := fmt.Sprintf("%s(%s): %s%s", w.Reason, w.Target, w.Message, at(w.Until))
	if w.Failures > 0 {
		out += fmt.Sprintf(" tries %d", w.Failures)
	}
	for _, f := range w.Details {
		out += fmt.Sprintf("; %s %s", f.Name, f.Value)
	}
	return out
}

func nextText(list []nodeapi.Step) string {
	var out []string
	for _, s := range list {
		text := strings.TrimSpace(s.Action+" "+s.Target) + at(s.At)
		if s.After != "" {
			text += " after " + s.After
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}

func TestWhyReportsWaitReasons(t *testing.T) {
	refused := &plan.Error{Kind: plan.Denied, Reason: "ErrImagePull", Err: fmt.Errorf("registry says: no such tag")}
	broken := &plan.Error{Kind: plan.Invalid, Reason: "InvalidImageName", Err: fmt.Errorf("cannot parse %q", "far")}
	startError := &plan.Error{Kind: plan.Other, Reason: "CreateContainerError", Err: fmt.Errorf("injected")}
	restOfStart := "CreateDirs\nEnsureCgroup"
	for _, row := range []struct {
		name, summary string
		waiting       []string
		next          string
		w             *simulatedPod
	}{
		{
			"a container in CrashLoopBackOff",
			"default/web is waiting for container \"a\": CrashLoopBackOff: back-off 40s restarting failed " +
				"container=a pod=web_default(u1) (next attempt in 35s)",
			[]string{"CrashLoopBackOff(a): back-off 40s restarting failed container=a pod=web_default(u1) " +
				"@1m16s; last " +
				"exit code 3; restarts 3; consecutive exits 4; back-off 40s; back-off after the next exit " +
				"1m20s; maximum " +
				"back-off 5m0s"},
			"StartContainer a @1m16s after the back-off\nRemoveContainer a @1m16s after StartContainer a",
			func() *simulatedPod {
				w := pod().settle().after(time.Second)
				w.exit("a", 3).settle().after(time.Second).exit("a", 3)            // immediate restart
				w.after(10*time.Second).settle().after(2*time.Second).exit("a", 3) // restart after 10 s
				w.after(20*time.Second).settle().after(2*time.Second).exit("a", 3)
				return w.after(5 * time.Second)
			}(),
		}, {
			"an infeasible resize", "default/web keeps its current resources: the resize is Infeasible",
			[]string{"ResizeInfeasible(): Node didn't have enough capacity: cpu, requested: 9000, capacity: 2000"},
			"",
			pod().settle().resized("9", "Infeasible", "Node didn't have enough capacity: cpu, requested: 9000, "+
				"capacity: 2000"),
		}, {
			"an image pull in back-off",
			"default/web is waiting for container \"a\": ImagePullBackOff: Back-off pulling image \"far\": " +
				"ErrImagePull: registry " +
				"says: no such tag (next attempt in 17s)",
			[]string{`ImagePullBackOff(a): Back-off pulling image "far": ErrImagePull: registry says: no such tag ` +
				`@20s tries 2`},
			"PullImage a @20s after the back-off\nStartContainer a @20s after PullImage a",
			pod(image("far")).start().complete("pull/a").fail("pull/a", 2, refused).settleHost().after(3 * time.Second),
		}, {
			"a failed image pull",
			"default/web is waiting for container \"a\": ErrImagePull: registry says: no such tag " +
				"(next attempt in 19s)",
			[]string{"ErrImagePull(a): registry says: no such tag @20s tries 2"},
			"PullImage a @20s after the back-off\nStartContainer a @20s after PullImage a",
			pod(image("far")).start().complete("pull/a").fail("pull/a", 2, refused).settleHost().after(time.Second),
		}, {
			"an invalid image name",
			"default/web is waiting for container \"a\": InvalidImageName: Failed to apply default image tag " +
				"\"no/Name\": invalid " +
				"reference format: repository name (no/Name) must be lowercase",
			[]string{
				`InvalidImageName(a): Failed to apply default image tag "no/Name": ` +
					`invalid reference format: repository name (no/Name) must be lowercase`,
			},
			"", pod(image("no/Name")).settleHost(),
		}, {
			"an image name rejected by the runtime",
			"default/web is waiting for container \"a\": InvalidImageName: cannot parse \"far\" (next attempt in 7s)",
			[]string{`InvalidImageName(a): cannot parse "far" @10s tries 1`},
			"PullImage a @10s after the back-off\nStartContainer a @10s after PullImage a",
			pod(image("far")).start().complete("pull/a").fail("pull/a", 1, broken).settleHost().after(3 * time.Second),
		}, {
			"a container that cannot be created",
			"default/web is waiting for container \"a\": CreateContainerError: injected (next attempt in 4s)",
			[]string{"CreateContainerError(a): injected @4s tries 3"},
			"StartContainer a @4s after the back-off",
			pod().settleHost().start().fail("start/a", 3, startError),
		}, {
			"a missing ConfigMap of the environment",
			`default/web is waiting for container "a": CreateContainerConfigError: configmap "conf" not found`,
			[]string{`CreateContainerConfigError(a): configmap "conf" not found`}, "",
			pod(configMapEnv).settle(),
		}, {
			"a missing ConfigMap of a volume",
			`default/web is waiting for volume "v": FailedMount: MountVolume.SetUp failed for volume "v" : configmap ` +
				`"conf" not found`,
			[]string{`FailedMount(v): MountVolume.SetUp failed for volume "v" : configmap "conf" not found`}, "",
			pod(configMapVolume).settle(),
		}, {
			"a network that is not ready",
			"default/web is waiting for NetworkNotReady: network is not ready: no CNI configuration",
			[]string{"NetworkNotReady(): network is not ready: no CNI configuration"},
			"RunSandbox after the pod network is ready\nStartContainer a after RunSandbox",
			pod().withoutNetwork(),
		}, {
			"a device without a plugin",
			"default/web is waiting for container \"a\": DevicesNotReady: example.com/gpu: no device plugin has " +
				"registered it",
			[]string{"DevicesNotReady(a): example.com/gpu: no device plugin has registered it"},
			"StartContainer a after its devices are available",
			pod().waitingForDevices("example.com/gpu: no device plugin has registered it").settle(),
		}, {
			"a node without capacity", "default/web is waiting for OutOfcpu: wanted 2, free 1",
			[]string{"OutOfcpu(): wanted 2, free 1"},
			strings.ReplaceAll(
				restOfStart, "\n", " after admission by the node\n",
			) + " after admission by the node\nRunSandbox after EnsureCgroup\nStartContainer a after RunSandbox",
			pod().withVerdict(plan.Wait, "OutOfcpu", "wanted 2, free 1"),
		}, {
			"pending admission", "default/web is waiting for Admission: admission is pending",
			[]string{"Admission(): admission is pending"},
			strings.ReplaceAll(
				restOfStart, "\n", " after admission by the node\n",
			) + " after admission by the node\nRunSandbox after EnsureCgroup\nStartContainer a after RunSandbox",
			pod().withVerdict(plan.NotRequested, "", ""),
		}, {
			"a rejected pod", "default/web has failed: NodeAffinity: Pod was rejected: no match", nil, "",
			pod().withVerdict(plan.Rejected, "NodeAffinity", "no match"),
		}, {
			"a running init container",
			"default/web is waiting for container \"i2\": PodInitializing: init container i2 (2 of 2) is running " +
				"since 2026-05-04T15:04:05Z",
			[]string{"PodInitializing(i2): init container i2 (2 of 2) is running since 2026-05-04T15:04:05Z"},
			"StartContainer a after the exit of init container i2",
			pod(inits("i1", "i2")).settle().exit("i1", 0).settle().after(7 * time.Second),
		}, {
			"a pull in progress", "default/web is starting: PullImage a (far), for 0s", nil,
			"StartContainer a after PullImage a",
			pod(image("far")).settleHost().start(),
		}, {
			"a deleted pod", "default/web is terminating (Deleted): StopContainer a (Deleted, grace period " +
				"20s), for 0s",
			[]string{"Terminating(a): container a is stopping and is killed at the end of its grace period of 20s " +
				"@19.999702606s"},
			"StopSandbox after StopContainer a\nRemoveContainer a after StopContainer a\nRemoveCgroup after " +
				"RemoveContainer a\nRemoveSandbox after RemoveContainer a\nRemoveDirs after RemoveSandbox",
			pod().settle().terminate(19999702606 * time.Nanosecond),
		}, {
			"an exceeded active deadline", "default/web has failed: DeadlineExceeded: too long", nil, "",
			pod(policy(corev1.RestartPolicyNever)).settle().failed("DeadlineExceeded", "too long"),
		}, {
			"an evicted pod that is recreated",
			"default/web has failed: Evicted: no room: the pod will be recreated 1m0s after its " +
				"termination, once the node has no pressure (in 1m0s)",
			[]string{"RecreatePending(): the pod will be recreated 1m0s after its termination, once the node has no " +
				"pressure @1m0s"}, "",
			pod(staticPod).settle().failed("Evicted", "no room"),
		}, {
			"a running pod", "default/web is up to date: waiting for nothing", nil, "", pod().settle(),
		}, {
			"a succeeded pod", "default/web has succeeded: all containers have completed", nil, "",
			pod(policy(corev1.RestartPolicyNever)).settle().exit("a", 0).settle(),
		}, {
			"a failed pod", "default/web has failed: container a exited with code 3 (Error)", nil, "",
			pod(policy(corev1.RestartPolicyNever)).settle().exit("a", 3).settle(),
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			y := Why(row.w.subject(), row.w.in.Now)
			if y.Summary != row.summary {
				t.Errorf("summary\n got %s\nwant %s", y.Summary, row.summary)
			}
			var waiting []string
			for _, x := range y.WaitingFor {
				waiting = append(waiting, waitText(x))
			}
			if got, want := strings.Join(waiting, "\n"), strings.Join(row.waiting, "\n"); got != want {
				t.Errorf("waiting\n got %s\nwant %s", got, want)
			}
			if got := nextText(y.Next); got != row.next {
				t.Errorf("next\n got %s\nwant %s", got, row.next)
			}
			for _, r := range y.Reasons {
				if strings.Contains(r.Target, "/") {
					t.Errorf("got an internal key: %+v", r)
				}
			}
		})
	}
}

func TestScenario24_NextRetryOfContainerInBackOff(t *testing.T) {
	for name, row := range map[string]struct {
		w    *simulatedPod
		want time.Duration // zero: no retry
	}{
		"crashing container": {
			pod().settle().exit("a", 3).settle().exit("a", 3).settle().after(3 * time.Second), 7 * time.Second,
		},
		"failing image pull": {
			pod(image("far")).start().complete("pull/a").fail(
				"pull/a", 2, &plan.Error{Kind: plan.Denied, Reason: "ErrImagePull", Err: errors.New("no")},
			).settleHost().after(3 * time.Second),
			17 * time.Second,
		},
		"missing ConfigMap":         {pod(configMapEnv).settle(), 0},
		"running container":         {pod().settle(), 0},
		"terminating container":     {pod().settle().terminate(20 * time.Second), 0},
		"container of a failed pod": {pod(policy(corev1.RestartPolicyNever)).settle().exit("a", 3).settle(), 0},
	} {
		got := NextRetries(row.w.subject(), row.w.in.Now)
		if at, found := got["a"]; found != (row.want > 0) || found && at.Sub(row.w.in.Now) != row.want || len(got) > 1 {
			t.Errorf("%s: got %v at %v, want in %s", name, got, row.w.in.Now, row.want)
		}
	}
}

// resized changes the CPU request. reason and message are the result of the allocator.
func (w *simulatedPod) resized(cpu, reason, message string) *simulatedPod {
	w.in.Pod = w.in.Pod.DeepCopy()
	w.in.Pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	w.in.Resize = plan.ResizeStatus{Reason: reason, Message: message}
	return w
}

func TestWhyReportsErrorOfPreviousAttempt(t *testing.T) {
	startError := &plan.Error{Kind: plan.Other, Reason: "CreateContainerError", Err: fmt.Errorf("injected")}
	w := pod().settleHost().start()
	if got := Why(w.subject(), w.in.Now); len(got.InProgress) != 1 ||
		strings.Contains(got.InProgress[0].Detail, "previous attempt failed") {
		t.Errorf("before the failure: %+v", got.InProgress)
	}
	w.fail("start/a", 1, startError).after(time.Minute).start()
	got := Why(w.subject(), w.in.Now)
	if len(got.InProgress) != 1 || !strings.HasSuffix(got.InProgress[0].Detail, "previous attempt failed: injected") ||
		!strings.Contains(got.Summary, "injected") {
		t.Errorf("%q, %+v", got.Summary, got.InProgress)
	}
}

// TestWhyHasNoJSON covers the events of a resize, which contain resources as JSON.
func TestWhyHasNoJSON(t *testing.T) {
	for _, reason := range []string{"Deferred", "Infeasible"} {
		w := Why(pod().settle().resized("9", reason, "full").subject(), t0)
		if text := fmt.Sprintf("%+v", w); strings.Contains(text, "{\"") || strings.Count(text, "full") != 1 {
			t.Errorf("%s: %s", reason, text)
		}
	}
}

// settleHost executes actions until the sandbox is running, without pulls and starts.
func (w *simulatedPod) settleHost() *simulatedPod {
	for range 5 {
		p := plan.Decide(w.in)
		w.in.Memory = p.Memory
		for _, a := range p.Actions() {
			switch a.(type) {
			case plan.PullImage, plan.StartContainer:
			default:
				w.succeed(a)
			}
		}
	}
	return w
}

func (w *simulatedPod) withoutNetwork() *simulatedPod {
	w.in.Observed.Network = plan.NetworkStatus{Message: "no CNI configuration"}
	return w.settle()
}

func (w *simulatedPod) withVerdict(state plan.VerdictState, reason, message string) *simulatedPod {
	w.in.Verdict = plan.Verdict{State: state, Reason: reason, Message: message}
	return w
}

func (w *simulatedPod) terminate(grace time.Duration) *simulatedPod {
	w.in.Termination = &plan.Termination{Reason: "Deleted", Grace: grace, RequestedAt: w.in.Now, RemovePod: true}
	return w
}

func (w *simulatedPod) failed(reason, message string) *simulatedPod {
	w.in.Termination = &plan.Termination{Reason: reason, Message: message, RequestedAt: w.in.Now,
		NodeCaused: reason == "Evicted"}
	return w.settle()
}

// staticPod makes the pod a static pod.
func staticPod(p *corev1.Pod) {
	p.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
}

func TestPlanReportsWhatBlocksIt(t *testing.T) {
	for _, row := range []struct {
		name, actions, reasons string
		opts                   []func(*corev1.Pod)
	}{
		{"complete pod", "CreateDirs EnsureCgroup RunSandbox StartContainer", "", nil},
		{
			"missing ConfigMap of the environment", "CreateDirs EnsureCgroup RunSandbox",
			`CreateContainerConfigError a: configmap "conf" not found`, []func(*corev1.Pod){configMapEnv},
		},
		{
			"missing ConfigMap of a volume", "CreateDirs EnsureCgroup RunSandbox",
			`FailedMount v: MountVolume.SetUp failed for volume "v" : configmap "conf" not found`,
			[]func(*corev1.Pod){configMapVolume},
		},
		{
			"init containers come before the rest", "CreateDirs EnsureCgroup RunSandbox StartContainer StartContainer",
			"",
			[]func(*corev1.Pod){inits("i")},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := pod(row.opts...)
			s := PodState{Pod: w.in.Pod, Limits: limits, Observed: plan.Observed{Images: w.in.Observed.Images}}
			p := PlanPod(s, nodeapi.Create, "", t0)
			var actions, reasons []string
			for _, st := range p.Stages {
				for _, a := range st.Actions {
					actions = append(actions, a.Action)
				}
			}
			for _, r := range p.Reasons {
				reasons = append(reasons, fmt.Sprintf("%s %s: %s", r.Code, r.Target, r.Detail))
			}
			if got := strings.Join(actions, " "); got != row.actions {
				t.Errorf("actions\n got %s\nwant %s", got, row.actions)
			}
			if got := strings.Join(reasons, "\n"); got != row.reasons {
				t.Errorf("reasons\n got %s\nwant %s", got, row.reasons)
			}
		})
	}
}

func TestPlanOfChangedImageRestartsContainer(t *testing.T) {
	w := pod().settle()
	k, _ := newest(w.in.Observed, "a")
	k.SpecHash = podspec.ContainerHash(&w.in.Pod.Spec.Containers[0])
	w.in.Observed = w.in.Observed.WithContainer(k)
	s := w.subject()
	s.Pod = s.Pod.DeepCopy()
	s.Pod.Spec.Containers[0].Image = "img2"
	p := PlanPod(s, nodeapi.Update, "", t0)
	got := fmt.Sprint(p.Stages, p.Reasons)
	if want := "[{configure []} {cleanup [{StopContainer a Changed, grace period 30s 1}]} {build-run [{PullImage " +
		"a img2 2} {StartContainer a main, attempt 1 3}]}] []"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestWhyPredictsNothingWithoutRuntime(t *testing.T) {
	s := pod().withVerdict(plan.NotRequested, "", "").subject()
	s.Reasons = []TimedReason{
		{plan.Reason{Code: "RuntimeNotReady", Message: "waiting for the container runtime: no socket"}, t0},
	}
	s.InProgress = nil
	y := Why(s, t0)
	if want := "default/web is waiting for RuntimeNotReady: waiting for the container runtime: no " +
		"socket"; y.Summary != want ||
		len(y.Next) != 0 {
		t.Errorf("got %q, next %v", y.Summary, y.Next)
	}
}
