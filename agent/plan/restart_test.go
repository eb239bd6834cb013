package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestRestartPolicy(t *testing.T) {
	t.Parallel()
	own := func(p corev1.ContainerRestartPolicy, rules ...corev1.ContainerRestartRule) func(*corev1.Container) {
		return func(c *corev1.Container) { c.RestartPolicy, c.RestartPolicyRules = &p, rules }
	}
	rule := func(op corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) corev1.ContainerRestartRule {
		return corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
	}
	in, notIn := corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn
	two := mains(con("app"), con("b"))
	runCases(t, []testCase{
		{"Always restarts after success", up().exit("app", 0), "start app#1",
			[]string{"pod    Running", "app    terminated Completed 0 restarts=0"}},
		{"Always restarts after failure", up().exit("app", 1), "start app#1", nil},
		{"OnFailure restarts after failure", up(onFailure).exit("app", 1), "start app#1", []string{"pod    Running"}},
		{"OnFailure does not restart after success, and the pod succeeds", up(onFailure).exit("app", 0), "stop sb-0",
			[]string{"pod    Succeeded", "Ready=False/PodCompleted", "Initialized=True/PodCompleted"}},
		{"Never does not restart after failure, and the pod fails", up(never).exit("app", 3), "stop sb-0",
			[]string{"pod    Failed", "app    terminated Error 3", "Ready=False/PodFailed"}},
		{"Never permits the first run after an interrupted start",
			up(never).exit("app", 128).input(func(in *Input) { in.Observed.Containers[0].Interrupted = true }),
			"remove app-0", []string{"pod    Running", "app    waiting ContainerCreating restarts=0"}},
		{"an interrupted start is not the only run of an ephemeral container",
			up(ephemeral(con("debug"))).exit("debug", 128).change("debug", func(k *Container) { k.Interrupted = true }),
			"remove debug-0", []string{"pod    Running", "debug  waiting ContainerCreating restarts=0", "Ready=True"}},
		{"Never with another running container: the pod continues", up(never, two).exit("app", 1), "-",
			[]string{"pod    Running", "Ready=False/ContainersNotReady"}},
		{"one failure among successes fails the pod", up(never, two).exit("app", 1).exit("b", 0), "",
			[]string{"pod    Failed"}},
		{"OnFailure with a completed and a failed container restarts the failed one",
			up(onFailure, two).exit("app", 0).exit("b", 1), "start b#1", []string{"pod    Running"}},
		{"an init container that fails under Never fails the pod before the app containers run",
			up(never, inits(con("one"), con("two"))).input(func(in *Input) {
				in.Observed.Containers, in.Memory = nil,
					Memory{}
			}).begin().finish().exit("one", 1), "stop sb-0",
			[]string{"pod    Failed", "two    waiting PodInitializing", "app    waiting PodInitializing",
				"Initialized=False/ContainersNotInitialized"}},
		{"an init container that fails under Always is retried", started("one", inits(con("one"))).exit("one", 1),
			"start one#1", []string{"pod    Pending"}},
		{"Never of a container overrides Always of the pod", up(mains(con("app", own("Never")))).exit("app", 1),
			"stop sb-0",
			[]string{"pod    Failed"}},
		{"Always of a container overrides Never of the pod", up(never, mains(con("app", own("Always")))).exit("app", 0),
			"start app#1", nil},
		{"Never of an init container overrides Always of the pod",
			started("one", inits(con("one", own("Never")))).exit("one", 1), "stop sb-0", []string{"pod    Failed"}},
		{"a rule that names the exit code restarts under Never",
			up(never, mains(con("app", own("Never", rule(in, 42))))).exit("app", 42), "start app#1", nil},
		{"another exit code falls back to the policy",
			up(never, mains(con("app", own("Never", rule(in, 42))))).exit("app", 1), "stop sb-0",
			[]string{"pod    Failed"}},
		{"NotIn restarts on all others", up(never, mains(con("app", own("Never", rule(notIn, 42))))).exit("app", 1),
			"start app#1", nil},
		{"NotIn leaves the listed code to the policy",
			up(never, mains(con("app", own("Never", rule(notIn, 42))))).exit("app", 42), "stop sb-0", nil},
		{"a sidecar restarts under Never", up(never, inits(sidecar("side"))).exit("side", 1), "start side#1",
			[]string{"pod    Running"}},
		{"a sidecar's exit code never decides the phase",
			up(never, inits(sidecar("side"))).exit("side", 9).exit("app", 0), "stop sb-0",
			[]string{"pod    Succeeded"}},
		{"completed app containers stop the sidecars for good",
			up(never, inits(sidecar("side"))).exit("app", 0), "stop side-0 30s", []string{"pod    Running"}},
	})
}

// TestInterruptedStartIsNotCounted checks that an instance is removed and its attempt is repeated
// when the runtime dies while it creates or starts a container.
func TestInterruptedStartIsNotCounted(t *testing.T) {
	t.Parallel()
	interrupted := func(change func(*Container), opts ...func(*corev1.Pod)) *driver {
		return started("app", opts...).change("app", change)
	}
	creating := func(k *Container) { k.State, k.CreatedAt, k.StartedAt = Unknown, time.Time{}, time.Time{} }
	starting := func(k *Container) { k.State, k.StartedAt = Unknown, time.Time{} }
	canceled := func(k *Container) { k.State, k.StartedAt, k.ExitCode, k.Interrupted = Exited, time.Time{}, 128, true }
	none := []string{"app    waiting ContainerCreating restarts=0"}
	runCases(t, []testCase{
		{"the runtime died during CreateContainer", interrupted(creating), "remove app-0", none},
		{"the same attempt is repeated", interrupted(creating).begin().finish(), "start app#0", none},
		{"also where the policy is Never, since it cannot have run", interrupted(creating, never).begin().finish(),
			"start app#0", none},
		{"the runtime died during StartContainer", interrupted(starting).begin().finish(), "start app#0", none},
		{"where the policy is Never it may have run and is stopped", interrupted(starting, never), "stop app-0 30s",
			nil},
		{"the runtime gave up the start", interrupted(canceled).begin().finish(), "start app#0", none},
		{"a container that was observed running has run", up().change("app", creating), "stop app-0 30s", nil},
		{"a container with a start time has run",
			interrupted(func(k *Container) { k.State, k.StartedAt = Unknown, k.CreatedAt }), "stop app-0 30s", nil},
	})
}

// started is a pod whose named container is the newest one and still running, also if it is an init
// container.
func started(name string, opts ...func(*corev1.Pod)) *driver {
	w := fresh(opts...)
	for range 20 {
		w.begin().finish()
		if _, seen := newDecider(w.in).newest(name); seen {
			return w.change(name, func(k *Container) { k.State, k.FinishedAt = Running, time.Time{} })
		}
	}
	panic(name + " never started")
}

func crashed(n int, opts ...func(*corev1.Pod)) *driver {
	w := up(opts...)
	for range n {
		w.crash("app")
	}
	return w
}

func TestScenario24_CrashBackOff(t *testing.T) {
	t.Parallel()
	fast := func(w *driver) *driver {
		return w.input(func(in *Input) { in.Limits.CrashMax, in.Limits.CrashBase = 4*time.Second, 4*time.Second })
	}
	runCases(t, []testCase{
		{"the first restart is immediate", up().exit("app", 1), "start app#1", nil},
		{"the second waits 10 s from the exit", crashed(1).exit("app", 1).after(4 * time.Second), "-",
			[]string{`app    waiting CrashLoopBackOff "back-off 10s restarting failed container=app ` +
				`pod=web_default(u1)" restarts=1 last=(terminated Error 1)`,
				`why    BackOff app "Back-off restarting failed container app in pod web_default(u1)" ` +
					`until+10s (Warning)`,
				"wake   at+10s", "pod    Running"}},
		{"… and then it starts", crashed(1).exit("app", 1).begin().after(10 * time.Second), "start app#2", nil},
		{"then 20 s", crashed(2).exit("app", 1), "-", []string{"back-off 20s "}},
		{"then 40 s", crashed(3).exit("app", 1), "-", []string{"back-off 40s "}},
		{"… up to 5 min", crashed(6).exit("app", 1), "-", []string{"back-off 5m0s "}},
		{"… and no more", crashed(40).exit("app", 1), "-", []string{"back-off 5m0s "}},
		{"the maximum is configurable", fast(crashed(3)).exit("app", 1), "-", []string{"back-off 4s "}},
		{"the count restarts after a run of 10 min", crashed(5).after(10*time.Minute).exit("app", 1), "start app#6",
			nil},
		{"… but not after a shorter run", crashed(5).after(10*time.Minute-time.Second).exit("app", 1), "-",
			[]string{"CrashLoopBackOff"}},
		{"a successful exit counts too", crashed(1).exit("app", 0), "-",
			[]string{"CrashLoopBackOff", "last=(terminated Completed 0)"}},
		{"each container has its own back-off", crashed(3, mains(con("app"), con("b"))).exit("b", 1), "start b#1", nil},
		{"another image resets the count", crashed(3).exit("app", 1).begin().edit(mains(con("app", image("new")))).
			input(func(in *Input) {
				in.Observed.Images = map[string]Image{"new": {ID: "sha:new"}}
			}), "start app#4", nil},
		{"one exit is counted once", crashed(1).exit("app", 1).begin().after(time.Second).begin().after(time.Second),
			"-",
			[]string{"back-off 10s ", "wake   at+10s"}},
		{"an exit time in the future counts from now", crashed(1).exit("app", 1).change("app",
			func(k *Container) { k.FinishedAt = t0.Add(5 * time.Second) }), "-", []string{"wake   at+10s"}},
		{"an unknown exit time counts from now", crashed(1).exit("app", 1).change("app",
			func(k *Container) { k.FinishedAt = time.Time{} }), "-", []string{"back-off 10s ", "wake   at+10s"}},
		{"setting back the clock does not extend the delay", crashed(1).exit("app", 1).begin().after(-time.Hour), "-",
			[]string{"wake   at+-59m50s"}},
		{"the back-off survives a restart of the agent",
			crashed(2).exit("app", 1).begin().input(func(in *Input) {
				in.Failures, in.Observed.PulledImages = nil, nil
			}), "-",
			[]string{"back-off 20s "}},
	})
}

func TestContainerSpecChange(t *testing.T) {
	t.Parallel()
	edited := func(w *driver, names ...string) *driver {
		w.in.Observed.Images = map[string]Image{"img": {ID: "sha:img"}, "new": {ID: "sha:new"}}
		return w.edit(func(p *corev1.Pod) {
			for _, n := range names {
				for i := range p.Spec.Containers {
					if p.Spec.Containers[i].Name == n {
						p.Spec.Containers[i].Image = "new"
					}
				}
				for i := range p.Spec.InitContainers {
					if p.Spec.InitContainers[i].Name == n {
						p.Spec.InitContainers[i].Image = "new"
					}
				}
			}
		})
	}
	runCases(t, []testCase{
		{"a container with a changed image is stopped", edited(up(), "app"), "stop app-0 30s",
			[]string{`why    Killing app "Container app definition changed, will be restarted" (Normal)`}},
		{"… and immediately started with the new one", edited(up(), "app").begin().finish(), "start app#1", nil},
		{"regardless of the policy: under Never", edited(up(never), "app").begin().finish(), "start app#1",
			[]string{"pod    Running"}},
		{"regardless of the policy: under OnFailure after success", edited(up(onFailure),
			"app").begin().finish().change("app", func(k *Container) { k.ExitCode = 0 }), "start app#1", nil},
		{"a container that exited before the edit is not restarted under Never",
			edited(up(never, mains(con("app"), con("b"))).exit("app", 0).begin(), "app"), "-", nil},
		{"the other containers are not affected", edited(up(mains(con("app"), con("b"))), "b"), "stop b-0 30s", nil},
		{"a sidecar is restarted too", edited(up(never, inits(sidecar("side"))), "side"), "stop side-0 30s", nil},
		{"a completed init container is not restarted", edited(up(inits(con("one"))), "one"), "-", nil},
		{"a container without a recorded hash is not restarted",
			edited(up().change("app", func(k *Container) { k.SpecHash = "" }), "app"), "-", nil},
		{"a terminating pod starts nothing", edited(up(never), "app").begin().finish().deleted(30 * time.Second),
			"stop sb-0, remove app-0", nil},
	})
}

func TestSandboxLoss(t *testing.T) {
	t.Parallel()
	full := []func(*corev1.Pod){inits(con("one"), sidecar("side"))}
	rebuilt := func(w *driver) *driver { // old containers and sandbox stopped, new sandbox running
		return w.sandboxLost().begin().finish().begin().finish().begin().finish()
	}
	runCases(t, []testCase{
		{"the containers of a lost sandbox are stopped first", up(full...).sandboxLost(), "stop app-0 30s",
			[]string{`why    SandboxChanged "Pod sandbox changed, it will be killed and re-created." (Normal)`,
				"PodReadyToStartContainers=False"}},
		{"… then the sidecars", up(full...).sandboxLost().begin().finish(), "stop side-0 30s", nil},
		{"… then the network is released", up(full...).sandboxLost().begin().finish().begin().finish(), "stop sb-0",
			nil},
		{"… then a new sandbox is created with the next attempt",
			up(full...).sandboxLost().begin().finish().begin().finish().begin().finish(), "run sandbox#1", nil},
		{"init containers run again in the new sandbox", rebuilt(up(full...)).begin().finish(), "start one#1",
			[]string{"Initialized=False", "ip=10.0.0.2"}},
		{"… then the app containers", rebuilt(up(full...)).begin().finish().begin().finish().begin().finish(),
			"start app#1",
			[]string{"one    terminated Completed 0 ready restarts=1"}},
		{"under OnFailure completed containers are not restarted",
			rebuilt(up(onFailure, mains(con("app"), con("b"))).exit("app", 0)), "start b#1", nil},
		{"under OnFailure a completed pod gets no new sandbox", up(onFailure).exit("app", 0).begin().sandboxLost(), "-",
			[]string{"pod    Succeeded"}},
		{"under Never a container killed with the sandbox fails the pod", up(never).sandboxLost().begin().finish(),
			"stop sb-0", []string{"pod    Failed"}},
		{"under Never a pod that has not run yet gets a new sandbox",
			fresh(never).begin().finish().begin().finish().sandboxLost().begin().finish(), "remove sb-0, run sandbox#1",
			nil},
		{"after a reboot of the node the pod is restarted", up().rebooted().begin().finish().begin().finish(),
			"start app#1",
			nil},
		{"… immediately, regardless of earlier crashes", crashed(3).rebooted().begin().finish().begin().finish(),
			"start app#4", nil},
		{"a container lost in a power failure has no back-off", crashed(3).rebooted().begin().finish().begin().finish(),
			"start app#4", nil},
		{"an ephemeral container of a lost sandbox is not restarted", rebuilt(up(ephemeral(con("debug")))),
			"start app#1",
			nil},
		{"an old sandbox without containers is removed",
			up().sandboxLost().begin().finish().begin().finish().begin().finish().
				input(func(in *Input) { in.Observed.Containers = nil }), "remove sb-0, start app#1", nil},
		{"a container of a sandbox that is not listed is stopped first",
			up().input(func(in *Input) { in.Observed.Sandboxes = nil }), "stop app-0 30s", nil},
		{"attempts continue after the highest one in the runtime",
			fresh().begin().finish().input(func(in *Input) {
				in.Observed.Sandboxes = []Sandbox{{ID: "x", Attempt: 6,
					Stopped: true}}
			}), "remove x, run sandbox#7", nil},
	})
}

func TestContainersOfInterruptedCalls(t *testing.T) {
	t.Parallel()
	add := func(w *driver, k Container) *driver {
		return w.input(func(in *Input) { in.Observed = in.Observed.WithContainer(k) })
	}
	twin := Container{ID: "twin", Name: "app", SandboxID: "sb-0", State: Running, Attempt: 3, StartedAt: t0,
		CreatedAt: t0}
	runCases(t, []testCase{
		{"a container in state Created left by a previous agent is removed",
			up().input(func(in *Input) {
				in.Observed.Containers[0].State = Created
			}), "remove app-0", []string{"restarts=0"}},
		{"… and created again with the same attempt",
			up().input(func(in *Input) {
				in.Observed.Containers[0].State = Created
				in.Memory = Memory{}
			}).begin().finish(),
			"start app#0", nil},
		{"a container in state Unknown is stopped before it runs again", up().change("app",
			func(k *Container) { k.State = Unknown }), "stop app-0 30s", []string{"waiting ContainerStatusUnknown"}},
		{"the older of two live instances is stopped", add(up(), twin), "stop app-0 30s", nil},
		{"nothing starts while an older instance is live",
			add(up(), twin).change("app", func(k *Container) {
				k.State, k.ExitCode = Exited, 1
			}), "stop app-0 30s", nil},
		{"one dead instance is kept for its log",
			crashed(1).exit("app", 1).begin().after(10 * time.Second).begin().finish(),
			"remove app-0", nil},
		{"under disk pressure no dead instance is kept besides the newest",
			crashed(1).begin().after(10 * time.Second).begin().finish().
				input(func(in *Input) { in.Observed.DiskPressure = true }), "remove app-0", nil},
		{"an exit that the runtime has lost is remembered",
			crashed(1).exit("app", 7).begin().input(func(in *Input) { in.Observed.Containers = nil }), "-",
			[]string{"last=(terminated Error 7)", "CrashLoopBackOff", "restarts=1"}},
		{"a succeeded pod is not run again when the runtime has lost it",
			up(onFailure).exit("app", 0).settle().
				input(func(in *Input) { in.Observed = Observed{Network: NetworkStatus{Ready: true}} }), "-",
			[]string{"pod    Succeeded", "app    terminated Completed 0"}},
		{"… or when only the control server knows it",
			fresh().edit(func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }), "-",
			[]string{"pod    Failed Evicted"}},
		{"a running container that was removed runs again", up().input(func(in *Input) {
			in.Observed.Containers = nil
		}),
			"start app#1", []string{"pod    Running"}},
	})
}
