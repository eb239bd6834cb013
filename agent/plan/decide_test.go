package plan

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestHostAndSandbox(t *testing.T) {
	t.Parallel()
	vol := func(w *driver) *driver {
		return w.input(func(in *Input) { in.Refs[Ref{ConfigMap, "cm"}] = Version{Version: "1"} })
	}
	withVolume := []func(*corev1.Pod){mains(con("app", mounts("v"))), configMapVolume("v", "cm")}
	runCases(t, []testCase{
		{"the host is prepared first, in parallel with the pull", fresh(mains(con("app", image("far")))),
			"make dirs, make cgroup, pull app far",
			[]string{"pod    Pending", `app    waiting ContainerCreating restarts=0`, "PodReadyToStartContainers=False",
				"Initialized=True"}},
		{"the sandbox waits for the directories and the cgroup only",
			vol(fresh(withVolume...)).begin().finish(), "mount v@1, run sandbox#0", nil},
		{"a container waits for its volumes", vol(fresh(withVolume...)).begin().finish().begin().succeed("run/sandbox"),
			"-",
			[]string{"PodReadyToStartContainers=True", "waiting ContainerCreating"}},
		{"a container starts when the sandbox, its volumes and its image are present",
			vol(fresh(withVolume...)).begin().finish().begin().finish(), "start app#0", nil},
		{"a volume that no container mounts is not set up", fresh(emptyDir("idle")).begin().finish(), "run sandbox#0",
			nil},
		{"a missing ConfigMap of a volume delays the containers and is reported",
			fresh(withVolume...).begin().finish().begin().finish(), "-",
			[]string{`why    FailedMount v "MountVolume.SetUp failed for volume \"v\" : configmap \"cm\" not ` +
				`found" (Warning)`}},
		{"an object that cannot be read delays its volume and its error is reported",
			fresh(withVolume...).input(func(in *Input) {
				in.Refs[Ref{ConfigMap,
					"cm"}] = Version{Err: "server is away"}
			}).begin().finish().begin().finish(), "-",
			[]string{"server is away"}},
		{"an object that is being fetched delays only its volume and is not reported",
			fresh(withVolume...).input(func(in *Input) {
				in.Refs[Ref{ConfigMap,
					"cm"}] = Version{Pending: true}
			}).begin().finish(), "run sandbox#0",
			[]string{"waiting ContainerCreating"}},
		{"services that are being fetched delay only the containers and are not reported",
			fresh().input(func(in *Input) {
				in.Refs[Ref{Services,
					"linked"}] = Version{Pending: true}
			}).begin().finish().begin().finish(), "-",
			[]string{"waiting ContainerCreating"}},
		{"a running pod keeps its content while an object is being fetched",
			vol(fresh(withVolume...)).settle().input(func(in *Input) {
				in.Refs = map[Ref]Version{{ConfigMap,
					"cm"}: {Pending: true}}
			}), "-", []string{"Ready=True"}},
		{"a new version of a ConfigMap is projected into the running pod",
			vol(fresh(withVolume...)).settle().input(func(in *Input) {
				in.Refs = map[Ref]Version{{ConfigMap,
					"cm"}: {Version: "2"}}
			}), "project v@2", []string{"Ready=True"}},
		{"a running pod keeps the content of a deleted source",
			vol(fresh(withVolume...)).settle().input(func(in *Input) {
				in.Refs = map[Ref]Version{{ConfigMap,
					"cm"}: {Missing: true}}
			}), "-", []string{"Ready=True"}},
		{"no sandbox is created while the node network is not ready",
			fresh().begin().finish().input(func(in *Input) {
				in.Observed.Network = NetworkStatus{Message: "no CNI config"}
			}),
			"-",
			[]string{`why    NetworkNotReady "network is not ready: no CNI config" (Warning)`}},
		{"a host network pod does not wait for the node network",
			fresh(func(p *corev1.Pod) { p.Spec.HostNetwork = true }).begin().finish().
				input(func(in *Input) { in.Observed.Network = NetworkStatus{} }), "run sandbox#0", nil},
		{"a host network pod has the node's addresses", up(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), "-",
			[]string{"ip=192.0.2.1"}},
		{"a pod without a verdict gets nothing", fresh().input(func(in *Input) { in.Verdict = Verdict{} }), "-",
			[]string{"pod    Pending", "NotAdmitted"}},
		{"a waiting pod gets nothing and its reason is reported",
			fresh().input(func(in *Input) {
				in.Verdict = Verdict{State: Wait, Reason: "OutOfcpu", Message: "4 wanted, 2 free"}
			}), "-", []string{"pod    Pending", `why    OutOfcpu "4 wanted, 2 free"`}},
		{"a pod that preempts others reports their names",
			fresh().input(func(in *Input) {
				in.Verdict = Verdict{State: Wait, Reason: "OutOfcpu", Preempts: "a/b"}
			}), "-",
			[]string{`why    Preempting "Preempts a/b in order to be admitted" (Normal)`, "pod    Pending"}},
		{"a waiting pod keeps its running containers", up().input(func(in *Input) {
			in.Verdict = Verdict{State: Wait,
				Reason: "OutOfcpu"}
		}), "-", []string{"pod    Running", "Ready=True"}},
		{"a completed pod needs no admission and is cleaned up without a verdict",
			up(never).exit("app", 0).input(func(in *Input) { in.Verdict = Verdict{} }), "stop sb-0",
			[]string{"pod    Succeeded"}},
		{"a completed pod cannot be rejected",
			up(never).exit("app", 0).input(func(in *Input) {
				in.Verdict = Verdict{State: Rejected, Reason: "X"}
			}), "stop sb-0",
			[]string{"pod    Succeeded", "!rejected"}},
		{"a rejected pod fails immediately and nothing is created",
			fresh().input(func(in *Input) {
				in.Verdict = Verdict{State: Rejected, Reason: "OutOfcpu", Message: "4 wanted, 2 there"}
			}), "-", []string{`pod    Failed OutOfcpu "Pod was rejected: 4 wanted, 2 there"`, "!ContainerCreating",
				`why    OutOfcpu "4 wanted, 2 there" (Warning)`, "Ready=False/PodFailed"}},
		{"the containers of a rejected pod are stopped before it fails",
			up().input(func(in *Input) { in.Verdict = Verdict{State: Rejected, Reason: "OutOfcpu", Message: "m"} }),
			"stop app-0 30s", []string{"pod    Running"}},
	})
}

// succeed finishes an action without an error.
func (w *driver) succeed(key string) *driver { return w.ends(key, nil) }

func TestFailures(t *testing.T) {
	t.Parallel()
	other := &Error{Kind: Other, Err: errors.New("failed")}
	failing := func(n int) *driver {
		w := fresh().begin().finish()
		for range n {
			w.fails("run/sandbox", other)
			w.decide()
			if !w.last.Wake.IsZero() {
				w.in.Now = w.last.Wake
			}
		}
		return w
	}
	runCases(t, []testCase{
		{"a failed action is delayed, reported with its reason and retried",
			fresh().begin().finish().fails("run/sandbox", other), "-",
			[]string{`why    FailedCreatePodSandBox run/sandbox "failed" until+1s`, "wake   at+1s"}},
		{"a failed action is retried after its delay", failing(1), "run sandbox#0", nil},
		{"the delay doubles", failing(3).fails("run/sandbox", other), "-", []string{"wake   at+15s"}}, // 1+2+4, then 8
		// 1+2+4+8+16+4×30, then 30
		{"the delay is limited", failing(9).fails("run/sandbox", other), "-", []string{"wake   at+3m1s"}},
		{"the delay does not grow while the runtime is unavailable",
			fresh().begin().finish().input(func(in *Input) {
				in.Failures[ActionKey{"run", "sandbox"}] = Failure{At: t0, Count: 50, Kind: Unavailable,
					Action: RunSandbox{}}
			}), "-", []string{"wake   at+1s"}},
		{"a canceled action is retried immediately",
			fresh().begin().finish().input(func(in *Input) {
				in.Failures[ActionKey{"run", "sandbox"}] = Failure{At: t0, Count: 9, Kind: Canceled,
					Action: RunSandbox{}}
			}), "run sandbox#0", nil},
		{"a failing container does not delay the others",
			fresh(mains(con("a"), con("b"))).begin().finish().begin().finish().fails("start/a", other), "start b#0",
			[]string{`a      waiting CreateContainerError "failed"`}},
		{"a container left by a failed start is removed first",
			fresh().begin().finish().begin().finish().fails("start/app",
				&Error{Kind: Other, Reason: "RunContainerError", Err: errors.New("no such file")}).
				input(func(in *Input) {
					in.Observed = in.Observed.WithContainer(Container{ID: "app-0", Name: "app", SandboxID: "sb-0",
						State: Created})
				}), "remove app-0", []string{`waiting RunContainerError "no such file"`, "pod    Pending"}},
		{"a missing Secret of the environment is reported",
			fresh(mains(con("app", func(c *corev1.Container) {
				secret := corev1.LocalObjectReference{Name: "s"}
				c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret}}}
			}))).begin().finish().begin().finish(), "-",
			[]string{`waiting CreateContainerConfigError "secret \"s\" not found"`,
				`why    Failed app "Error: secret \"s\" not found" (Warning)`}},
		{"only the container with the missing device waits, and the reason is reported",
			fresh(mains(con("a"), con("b"))).begin().finish().begin().finish().input(func(in *Input) {
				in.Observed.Devices = map[string]DeviceStatus{
					"a": {Pending: "example.com/gpu: no device plugin has registered it"}, "b": {},
				}
			}), "start b#0",
			[]string{`a      waiting DevicesNotReady "example.com/gpu: no device plugin has registered it"`,
				`why    DevicesNotReady a "example.com/gpu: no device plugin has registered it" (Warning)`}},
		{"a running container is not affected by a missing device",
			up().input(func(in *Input) {
				in.Observed.Devices = map[string]DeviceStatus{
					"app": {Pending: "example.com/gpu: its device plugin does not answer"},
				}
			}), "-", []string{"Ready=True", "!DevicesNotReady"}},
		{"an optional object may be missing",
			fresh(mains(con("app", func(c *corev1.Container) {
				yes := true
				c.Env = []corev1.EnvVar{{Name: "A",
					ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
						LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Key: "k", Optional: &yes}}}}
			}))).begin().finish().begin().finish(), "start app#0", nil},
	})
}

func TestContainerStartOrder(t *testing.T) {
	t.Parallel()
	chain := inits(con("one"), sidecar("side"), con("two"))
	// running shows an init container that is still running.
	running := func(w *driver, name string) *driver {
		return w.change(name, func(k *Container) { k.State, k.FinishedAt = Running, time.Time{} })
	}
	to := func(n int, opts ...func(*corev1.Pod)) *driver { // n syncs in which all actions succeed
		w := fresh(opts...)
		for range n {
			w.begin().finish()
		}
		return w
	}
	slow := mains(con("app"), con("b", image("far")), con("c"))
	mounting := ephemeral(con("debug", mounts("v")))
	// withDebug is a running pod with a new ephemeral container that mounts a volume from a
	// ConfigMap of the given version, or without the ConfigMap if it is empty.
	withDebug := func(version string) *driver {
		w := up(mains(con("app", func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} })),
			configMapVolume("v", "cm")).edit(mounting)
		if version != "" {
			w.in.Refs[Ref{ConfigMap, "cm"}] = Version{Version: version}
		}
		return w
	}
	runCases(t, []testCase{
		{"the first init container starts alone", to(2, chain), "start one#0",
			[]string{"Initialized=False/ContainersNotInitialized", "app    waiting PodInitializing"}},
		{"the second waits while the first runs", running(to(3, chain), "one"), "-",
			[]string{"pod    Pending", "one    running"}},
		{"the next one starts after it has succeeded", to(3, chain), "start side#0",
			[]string{"one    terminated Completed 0 ready"}},
		{"a started sidecar lets the next one start", to(4, chain), "start two#0",
			[]string{"side   running since+0s started ready"}},
		{"a sidecar whose startup probe has not succeeded delays the next one",
			to(4, inits(sidecar("side", func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{} }), con("two"))).
				input(func(in *Input) {
					in.Limits.Probing = true
					in.Observed.Containers = in.Observed.Containers[len(in.Observed.Containers)-1:]
				}), "",
			[]string{"!start two", "probe  side-0 {Startup:true Readiness:false Liveness:false}"}},
		{"the app containers start when all init containers are done", to(5, chain), "start app#0",
			[]string{"Initialized=True"}},
		{"a pod with a running sidecar and waiting app containers is Pending", to(4, chain), "",
			[]string{"pod    Pending"}},
		{"a failed init container is retried and the next one waits", to(3, chain).exit("one", 1), "start one#1",
			[]string{"one    terminated Error 1"}},
		{"the second failure waits for the back-off", to(3, chain).exit("one", 1).begin().finish().exit("one", 1), "-",
			[]string{`one    waiting CrashLoopBackOff "back-off 10s restarting failed container=one ` +
				`pod=web_default(u1)" restarts=1 last=(terminated Error 1)`, "pod    Pending"}},
		{"a sidecar that crashes while a later init container runs is restarted and delays nothing",
			to(5, chain).exit("side", 1).begin().finish().exit("side", 1), "start app#0",
			[]string{"side   waiting CrashLoopBackOff"}},
		{"app containers start one at a time in spec order", to(2, mains(con("a"), con("b"))), "start a#0", nil},
		{"the next one starts when the previous start has finished", to(3, mains(con("a"), con("b"))), "start b#0",
			nil},
		{"no other container starts while a start is in progress", to(2, mains(con("a"), con("b"))).begin(), "-", nil},
		{"an app container whose image is being pulled delays later ones", to(2, slow).begin().succeed("start/app"),
			"start b#0", nil},
		{"an ephemeral container starts in parallel with the init containers", to(2, chain, ephemeral(con("debug"))),
			"start debug#0", nil},
		{"an ephemeral container does not delay them", to(3, chain, ephemeral(con("debug"))), "start one#0",
			[]string{"debug  running"}},
		{"an ephemeral container never runs twice", up(ephemeral(con("debug"))).exit("debug", 1), "-",
			[]string{"debug  terminated Error 1", "pod    Running", "Ready=True"}},
		{"a volume of an ephemeral container that cannot be set up does not delay a restart",
			withDebug("").exit("app", 1),
			"start app#1", []string{"why    FailedMount v", "debug  waiting ContainerCreating"}},
		{"… or a probe", withDebug("").input(func(in *Input) { in.Limits.Probing = true }), "-",
			[]string{"probe  app-0 {Startup:false Readiness:false Liveness:true}"}},
		{"… or a first start", to(2, chain, mounting, configMapVolume("v", "cm")), "start one#0", nil},
		{"an ephemeral container waits for its volume", withDebug("1"), "mount v@1", nil},
		{"… and starts when it is mounted", withDebug("1").begin().finish(), "start debug#0", nil},
		{"a volume that another container also mounts delays the pod", to(3, mains(con("app", mounts("v"))), mounting,
			configMapVolume("v", "cm")), "-", []string{"app    waiting ContainerCreating"}},
		{"a sidecar that exits 0 runs again", up(inits(sidecar("side"))).exit("side", 0), "start side#1",
			[]string{"pod    Running", "Initialized=True"}},
		{"an init container that has succeeded does not run again", up(chain).after(time.Hour), "-",
			[]string{"one    terminated Completed 0 ready"}},
	})
}

func TestPostStart(t *testing.T) {
	t.Parallel()
	starting := func() *driver { // created and running, but StartContainer has not returned
		w := fresh(mains(con("app",
			func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }))).begin().finish().begin().finish().begin()
		w.in.Limits.Probing = true
		w.in.Observed = w.in.Observed.WithContainer(Container{ID: "app-0", Name: "app", SandboxID: "sb-0",
			State:     Running,
			CreatedAt: t0, StartedAt: t0})
		return w
	}
	runCases(t, []testCase{
		{"a container whose postStart hook has not finished is not Running and not probed", starting(), "-",
			[]string{"app    waiting ContainerCreating", "pod    Pending", "!probe"}},
		{"deleting the pod cancels the start and stops the container", starting().deleted(30 * time.Second),
			"cancel start/app, stop app-0 30s", nil},
		{"a created container is not removed while its start is in progress",
			starting().change("app", func(k *Container) { k.State = Created }).deleted(0), "cancel start/app", nil},
	})
}
