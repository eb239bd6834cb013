package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// rule adds a restart rule for exit codes to a container.
func rule(action corev1.ContainerRestartRuleAction, op corev1.ContainerRestartRuleOnExitCodesOperator,
	codes ...int32) func(*corev1.Container) {
	return func(c *corev1.Container) {
		if c.RestartPolicy == nil {
			policy := corev1.ContainerRestartPolicyNever
			c.RestartPolicy = &policy
		}
		c.RestartPolicyRules = append(c.RestartPolicyRules, corev1.ContainerRestartRule{
			Action: action, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes},
		})
	}
}

const (
	in                    = corev1.ContainerRestartRuleOnExitCodesOpIn
	notIn                 = corev1.ContainerRestartRuleOnExitCodesOpNotIn
	one                   = corev1.ContainerRestartRuleActionRestart
	restartEveryContainer = corev1.ContainerRestartRuleActionRestartAllContainers
)

// TestRestartRules covers the section on restart policies and rules of containers in
// concepts/workloads/pods/pod-lifecycle.
func TestRestartRules(t *testing.T) {
	t.Parallel()
	policy := func(p corev1.ContainerRestartPolicy) func(*corev1.Container) {
		return func(c *corev1.Container) { c.RestartPolicy = &p }
	}
	runCases(t, []testCase{
		{"the policy of a container overrides the pod's",
			up(mains(con("app", policy(corev1.ContainerRestartPolicyNever)),
				con("b"))).exit("app", 1), "-", []string{"app    terminated Error 1", "pod    Running"}},
		{"… also to restart it", up(never,
			mains(con("app", policy(corev1.ContainerRestartPolicyOnFailure)), con("b"))).exit("app", 1), "start app#1",
			nil},
		{"the policy of an init container decides whether its failure fails the pod", started("one", inits(con("one",
			policy(corev1.ContainerRestartPolicyNever)))).exit("one", 1), "stop sb-0", []string{"pod    Failed"}},
		{"an exit code in a rule restarts under Never", up(never, mains(con("app", rule(one, in, 42)))).exit("app", 42),
			"start app#1", nil},
		{"another exit code falls back to the policy", up(never, mains(con("app", rule(one, in, 42)))).exit("app", 1),
			"stop sb-0", []string{"pod    Failed"}},
		{"NotIn matches all other codes", up(never, mains(con("app", rule(one, notIn, 0, 1)))).exit("app", 7),
			"start app#1",
			nil},
		{"… but not the listed ones", up(never, mains(con("app", rule(one, notIn, 0, 1)))).exit("app", 1), "stop sb-0",
			nil},
		{"the first matching rule applies", up(never, mains(con("app", rule(one, in, 42),
			rule(restartEveryContainer, notIn, 0)), con("b"))).exit("app", 42), "start app#1", nil},
		{"restarts by a rule have a back-off", up(never, mains(con("app", rule(one, in, 42)))).exit("app",
			42).settle().exit("app", 42), "-", []string{"waiting CrashLoopBackOff"}},
	})
}

// TestRestartAllContainers covers the section on RestartAllContainers of that page.
func TestRestartAllContainers(t *testing.T) {
	t.Parallel()
	full := []func(*corev1.Pod){never, inits(con("one"), sidecar("side", rule(restartEveryContainer, in, 88))),
		mains(con("a", preStop), con("b")), ephemeral(con("debug"))}
	exited := func() *driver { return up(full...).exit("side", 88) }
	dead := func() *driver { return exited().begin().finish() }
	again := func() *driver { // until the first app container starts
		w := up(full...).exit("b", 0).exit("side", 88)
		for range 30 {
			if w.begin(); w.in.InProgress[ActionKey{"start", "a"}] != nil {
				return w
			}
			w.finish()
		}
		panic(w.text())
	}
	runCases(t, []testCase{
		{"a matching exit kills all containers without grace period and preStop", exited(),
			"stop debug-0 0s, stop b-0 0s, stop a-0 0s",
			[]string{"AllContainersRestarting=True", "pod    Running"}},
		{"another exit of that container does not", up(full...).exit("side", 1), "start side#1",
			[]string{"AllContainersRestarting=False"}},
		{"a pod without such a rule has no condition", up(never), "-", []string{"!AllContainersRestarting"}},
		{"then the init containers run again in the same sandbox", dead(), "start one#1",
			[]string{"AllContainersRestarting=False", "Initialized=False", "ip=10.0.0.1"}},
		{"… then the sidecar, immediately after its first crash", dead().begin().finish(), "start side#1", nil},
		{"… then the app containers, regardless of exit codes and policy", again(), "-",
			[]string{"b      terminated Completed 0", "restarts=1"}},
		{"… one after the other", again().finish(), "start b#1", nil},
		{"then the pod is ready again", again().settle(), "-",
			[]string{"one    terminated Completed 0 ready restarts=1",
				"side   running", "a      running", "b      running", "Ready=True", "debug  terminated Error 137"}},
		{"ephemeral containers are not restarted", again().settle(), "-", nil},
		{"a container that is being started is canceled", justStarted("a", full...).begin().exit("side", 88),
			"cancel start/b, stop debug-0 0s, stop a-0 0s", nil},
		{"… and the new round waits for it", justStarted("a", full...).begin().exit("side", 88).begin().ends("start/b",
			nil).begin().finish(), "start one#1", nil},
		{"a container that triggers it again has a back-off", again().settle().exit("side",
			88).begin().finish().begin().finish(), "remove one-0", []string{"side   waiting CrashLoopBackOff"}},
		{"an init container can trigger it", started("two",
			inits(con("one"), con("two", rule(restartEveryContainer, in, 3)))).exit("two", 3), "start one#1", nil},
		{"a terminating pod starts no new round", exited().deleted(30 * time.Second),
			"stop debug-0 30s, stop b-0 30s, preStop a-0", []string{"AllContainersRestarting=False"}},
		{"an agent restarted meanwhile continues to kill", exited().begin().restartAgent(),
			"stop debug-0 0s, stop b-0 0s, stop a-0 0s", nil},
		{"… but kills no container of the new round", again().finish().restartAgent(), "start b#1", nil},
		{"a stop in progress with a longer grace period is canceled",
			up(full...).edit(func(p *corev1.Pod) { p.Spec.Containers[1].Image = "other" }).begin().exit("side", 88),
			"cancel stop/b-0, stop debug-0 0s, stop a-0 0s", nil},
	})
}
