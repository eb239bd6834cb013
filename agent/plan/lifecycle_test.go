package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The statements of the Kubernetes documentation on pods that depend on decisions of the node
// agent, paraphrased.

// TestPodLifecyclePage covers concepts/workloads/pods/pod-lifecycle.
func TestPodLifecyclePage(t *testing.T) {
	t.Parallel()
	two := mains(con("app"), con("b"))
	gated := func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/feature"}}
	}
	runCases(t, []testCase{
		// Pod phase
		{"Pending: one or more containers are not ready to run, including image downloads",
			fresh(mains(con("app", image("far")))).begin(), "-", []string{"pod    Pending"}},
		{"Running: all containers are created, at least one is running, starting or restarting", up(two).exit("app", 1),
			"",
			[]string{"pod    Running"}},
		{"Succeeded: all containers have terminated in success and will not be restarted",
			up(onFailure, two).exit("app", 0).exit("b", 0), "", []string{"pod    Succeeded"}},
		{"Failed: all containers have terminated, at least one in failure and without restart",
			up(never, two).exit("app", 0).exit("b", 1), "", []string{"pod    Failed"}},
		{"the exit codes of a deleted pod determine its phase: Failed", up().deleted(0).begin().finish(), "",
			[]string{"pod    Failed"}},
		{"… or Succeeded", up().deleted(9*time.Second).begin().exit("app",
			0).input(func(in *Input) { clear(in.InProgress) }), "", []string{"pod    Succeeded"}},
		{"a pod does not survive an eviction", up().terminate("Evicted", 0).settle(), "",
			[]string{"pod    Failed Evicted"}},
		// Container states
		{"Waiting has a reason", fresh(mains(con("app", image("far")))).begin(), "",
			[]string{"app    waiting ContainerCreating"}},
		{"Running has a start time", up(), "", []string{"running since+0s"}},
		{"Terminated has a reason and an exit code", up(never).exit("app", 2), "", []string{"terminated Error 2"}},
		// Problems with containers
		{"an initial crash is restarted immediately", up().exit("app", 1), "start app#1", nil},
		{"repeated crashes are delayed exponentially: 10 s", crashed(1).exit("app", 1), "-", []string{"back-off 10s"}},
		{"… 20 s", crashed(2).exit("app", 1), "-", []string{"back-off 20s"}},
		{"… 40 s", crashed(3).exit("app", 1), "-", []string{"back-off 40s"}},
		{"the delay is capped at 5 minutes", crashed(20).exit("app", 1), "-", []string{"back-off 5m0s"}},
		{"CrashLoopBackOff reports the delay", crashed(1).exit("app", 1), "-", []string{"waiting CrashLoopBackOff"}},
		{"after 10 minutes without problems a crash counts as the first", crashed(20).after(10*time.Minute).exit("app",
			1),
			"start app#21", nil},
		{"restartPolicy Always restarts after any termination", up().exit("app", 0), "start app#1", nil},
		{"OnFailure only after an error", up(onFailure).exit("app", 0), "stop sb-0", nil},
		{"Never does not", up(never).exit("app", 1), "stop sb-0", nil},
		{"init containers that fail are restarted under OnFailure",
			started("one", onFailure, inits(con("one"))).exit("one", 1), "start one#1", nil},
		{"… and under Always", started("one", inits(con("one"))).exit("one", 1), "start one#1", nil},
		{"sidecars ignore the pod's policy", up(never, inits(sidecar("side"))).exit("side", 0), "start side#1", nil},
		// Conditions
		{"PodScheduled: the pod is on a node", fresh(), "", []string{"PodScheduled=True"}},
		{"PodReadyToStartContainers is False before there is a sandbox", fresh(), "",
			[]string{"PodReadyToStartContainers=False"}},
		{"… True once sandbox and network exist", up(), "", []string{"PodReadyToStartContainers=True"}},
		{"… False again without the sandbox after a reboot", up().rebooted(), "",
			[]string{"PodReadyToStartContainers=False"}},
		{"without init containers Initialized is True before there is a sandbox", fresh(), "",
			[]string{"Initialized=True"}},
		{"with init containers it is True when they have succeeded", up(inits(con("one"))), "",
			[]string{"Initialized=True"}},
		{"ContainersReady: all containers are ready", up(two), "", []string{"ContainersReady=True"}},
		{"Ready needs all readiness gates too; a missing condition counts as False", up(gated), "",
			[]string{"ContainersReady=True", " Ready=False/ReadinessGatesNotReady"}},
	})
}

// TestPodLifecyclePageProbesAndTermination covers the second half of that page.
func TestPodLifecyclePageProbesAndTermination(t *testing.T) {
	t.Parallel()
	two := mains(con("app"), con("b"))
	deadline := func(p *corev1.Pod) { n := int64(60); p.Spec.ActiveDeadlineSeconds = &n }
	probed := func(h Health, opts ...func(*corev1.Container)) *driver {
		return up(mains(con("app", opts...))).input(func(in *Input) {
			in.Limits.Probing, in.Health = true,
				map[string]Health{"app-0": h}
		})
	}
	all := func(c *corev1.Container) {
		c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = &corev1.Probe{}, &corev1.Probe{}, &corev1.Probe{}
	}
	runCases(t, []testCase{
		// Probes
		{"a failed liveness probe kills the container",
			probed(Health{Started: true, Failed: true, FailedProbe: "liveness"}, all), "stop app-0 30s", nil},
		{"… which is then subject to its restart policy",
			probed(Health{Started: true, Failed: true, FailedProbe: "liveness"}, all).begin().finish(), "start app#1",
			nil},
		{"readiness before the first result is failure", probed(Health{Started: true}, all), "-",
			[]string{"!started ready"}},
		{"without a readiness probe it is success", probed(Health{}), "-", []string{"started ready"}},
		{"all other probes wait for the startup probe", probed(Health{}, all), "-",
			[]string{"{Startup:true Readiness:false Liveness:false}"}},
		{"repeated kills by a probe cause a crash back-off",
			probed(Health{Started: true, Failed: true, FailedProbe: "liveness"},
				all).begin().finish().settle().input(func(in *Input) {
				in.Health = map[string]Health{"app-1": {Started: true, Failed: true, FailedProbe: "liveness"}}
			}).begin().finish(), "-", []string{"app    waiting CrashLoopBackOff"}},
		{"a failed startup probe kills the container", probed(Health{Failed: true, FailedProbe: "startup"}, all),
			"stop app-0 30s", nil},
		{"without a startup probe it is success", probed(Health{}), "-", []string{"started"}},
		// Termination
		{"containers get the grace period to stop, default 30 s", up(never).sandboxLost(), "stop app-0 30s", nil},
		{"after deletion nothing is restarted", up(two).deleted(30*time.Second).begin().exit("app", 1), "-",
			[]string{"app    terminated Error 1"}},
		{"after a restart of the agent only the rest of the grace period remains",
			up().deleted(30 * time.Second).begin().after(10 * time.Second).
				input(func(in *Input) { in.InProgress = map[ActionKey]Action{} }), "stop app-0 20s", nil},
		{"sidecars are not stopped before the last app container has terminated",
			up(inits(sidecar("side")), two).deleted(30*time.Second).begin().exit("app",
				0).input(func(in *Input) {
				delete(in.InProgress, ActionKey{"stop", "app-0"})
			}), "-", []string{"side   running"}},
		{"sidecars stop in reverse order",
			up(inits(sidecar("s1"), sidecar("s2"))).deleted(30 * time.Second).begin().finish(), "stop s2-0 30s", nil},
		{"after the grace period all remaining containers are stopped together", up(inits(sidecar("s1"),
			sidecar("s2"))).deleted(30 * time.Second).begin().after(time.Minute), "stop s2-0 2s, stop s1-0 2s", nil},
		{"an active deadline terminates the pod", up(deadline).after(time.Minute), "stop app-0 30s",
			[]string{"DeadlineExceeded"}},
	})
}

// TestTerminatedContainerTimes covers that page's statement on the state Terminated.
func TestTerminatedContainerTimes(t *testing.T) {
	t.Parallel()
	w := up(never).after(time.Minute).exit("app", 2)
	st := w.decide().Status.ContainerStatuses[0].State.Terminated
	if st == nil || !st.StartedAt.Time.Equal(t0) || !st.FinishedAt.Time.Equal(t0.Add(time.Minute)) ||
		st.Reason != "Error" || st.ExitCode != 2 {
		t.Errorf("%+v", st)
	}
}

// TestInitContainersPage covers concepts/workloads/pods/init-containers.
func TestInitContainersPage(t *testing.T) {
	t.Parallel()
	pair := inits(con("one"), con("two"))
	volumes := []func(*corev1.Pod){inits(con("one", mounts("v"))), emptyDir("v")}
	runCases(t, []testCase{
		{"init containers wait until networking and storage are ready",
			fresh(volumes...).begin().finish().begin().succeed("run/sandbox"), "-",
			[]string{"one    waiting PodInitializing"}},
		{"they run in the order of the spec", started("one", pair), "-", nil},
		{"each must succeed before the next starts", started("one", pair).exit("one", 0), "start two#0", nil},
		{"the app containers start after all of them", started("two", pair).exit("two", 0), "start app#0", nil},
		{"a failed one is retried by the restart policy", started("one", pair).exit("one", 1), "start one#1", nil},
		{"an init container that cannot be started is retried, too",
			fresh(pair).begin().finish().begin().finish().fails("start/one",
				&Error{Err: errors.New("x")}).after(time.Second), "start one#0", nil},
		{"policy Always is OnFailure for them: a completed one is not restarted", started("one", pair).exit("one", 0),
			"start two#0", nil},
		{"under Never a failure fails the whole pod", started("one", never, pair).exit("one", 1), "stop sb-0",
			[]string{"pod    Failed"}},
		{"a pod cannot be Ready before all have succeeded", started("two", pair), "-", []string{" Ready=False"}},
		{"a pod that is initializing is Pending", started("two", pair), "-",
			[]string{"pod    Pending", "Initialized=False"}},
		{"if the pod's sandbox restarts all of them run again", up(pair).rebooted().begin().finish().begin().finish(),
			"start one#1", nil},
		{"a change of an app container's image restarts that container only",
			up(pair).edit(mains(con("app", image("new")))),
			"stop app-0 30s", nil},
		{"their image's change does not run them again", up(pair).edit(inits(con("one", image("new")), con("two"))),
			"-",
			nil},
		{"they are not run again when the runtime loses their records",
			up(pair).input(func(in *Input) {
				in.Observed.Containers = filter(in.Observed.Containers, func(k Container) bool {
					return k.Name != "app"
				})
				in.Memory.Exits = nil
			}), "-", []string{"Initialized=True", "one    terminated Completed 0 ready"}},
		{"the active deadline includes them",
			started("one", pair, func(p *corev1.Pod) { n := int64(5); p.Spec.ActiveDeadlineSeconds = &n }).
				after(5 * time.Second), "stop one-0 30s", nil},
	})
}

// TestSidecarContainersPage covers concepts/workloads/pods/sidecar-containers.
func TestSidecarContainersPage(t *testing.T) {
	t.Parallel()
	mixed := inits(con("one"), sidecar("side"), con("two"))
	runCases(t, []testCase{
		{"a sidecar remains running as long as the pod", up(mixed).after(time.Hour), "-", []string{"side   running"}},
		{"the next init container starts when it has started", started("side", mixed), "start two#0", nil},
		{"it can be restarted without touching the others", up(mixed).exit("side", 1), "start side#1",
			[]string{"app    running"}},
		{"its startup probe delays the next one",
			started("side", inits(con("one"), sidecar("side", func(c *corev1.Container) {
				c.StartupProbe = &corev1.Probe{}
			}),
				con("two"))).input(func(in *Input) {
				in.Limits.Probing = true
			}), "-", []string{"two    waiting PodInitializing"}},
		{"its readiness probe decides the pod's readiness",
			up(inits(sidecar("side", func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }))).
				input(func(in *Input) { in.Limits.Probing = true }), "-", []string{" Ready=False/ContainersNotReady"}},
		{"its readiness decides the pod's readiness", up(mixed).exit("side", 1), "",
			[]string{" Ready=False/ContainersNotReady"}},
		{"it does not keep a job from completing", up(never, mixed).exit("app", 0).settle(), "-",
			[]string{"pod    Succeeded"}},
		{"its exit code is ignored when the pod terminates", up(never, mixed).exit("app", 0).settle(), "-",
			[]string{"pod    Succeeded", "side   terminated Error 137"}},
		{"it stops after the app containers", up(mixed).deleted(30 * time.Second), "stop app-0 30s", nil},
		{"it gets 2 s if the app containers have used the grace period",
			up(mixed).deleted(30 * time.Second).begin().after(30 * time.Second), "stop side-0 2s", nil},
		{"a change of its image restarts it and not the pod",
			up(mixed).edit(inits(con("one"), sidecar("side", image("new")),
				con("two"))), "stop side-0 30s", []string{"app    running"}},
	})
}
