package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/nodeapi"
)

// step is one future action.
type step struct {
	action plan.Action
	sync   int
	at     time.Time
	after  string // what finished in the sync before
}

// Limits of the simulation, sufficient for a pod with many containers.
const (
	maxPasses = 200
	maxTime   = 30 * time.Minute
)

// simulate runs plan.Decide repeatedly, starting with the current state of the pod, on a host on
// which every action succeeds. It returns the actions, and the reasons why the pod cannot continue
// without an external change.
func simulate(s PodState, now time.Time) (out []step, stopped []plan.Reason) {
	d := simulation{in: plan.Input{
		Now: now, Pod: s.Pod, Verdict: s.Verdict, Reserved: s.Reserved, Resize: s.Resize, Termination: s.Termination,
		Observed: s.Observed, Refs: s.Refs,
		InProgress: map[plan.ActionKey]plan.Action{}, Failures: maps.Clone(s.Failed), Memory: s.Memory,
		Limits: s.Limits,
	}}
	d.in.Limits.Probing = false // in the simulation all probes succeed
	for _, b := range s.InProgress {
		d.in.InProgress[b.Action.Key()] = b.Action
	}
	for n := 1; n <= maxPasses; n++ {
		p := plan.Decide(d.in)
		d.in.Memory = p.Memory
		actions := p.Actions()
		for _, a := range actions {
			out = append(out, step{a, n, d.in.Now, d.after})
		}
		for _, a := range actions {
			d.succeed(a)
		}
		switch {
		case len(d.in.InProgress) > 0:
			d.finish()
		case len(actions) > 0:
			d.after = actionText(actions[len(actions)-1])
		case d.unblock(p):
		case p.Done || p.Wake.IsZero() || p.Wake.Sub(now) > maxTime:
			return out, p.Reasons
		default:
			d.in.Now, d.after = p.Wake, "the back-off"
		}
	}
	return out, nil
}

// simulation is a pod on a host on which every action succeeds.
type simulation struct {
	in    plan.Input
	after string // what the pod waited for last
}

// succeed applies the successful result of an action.
func (d *simulation) succeed(a plan.Action) {
	d.in.Observed = d.in.Observed.After(successOf(d.in.Observed, a, d.in.Now))
	delete(d.in.Failures, a.Key())
	delete(d.in.InProgress, a.Key())
}

// finish completes the actions in progress.
func (d *simulation) finish() {
	for _, key := range slices.SortedFunc(
		maps.Keys(d.in.InProgress), func(a, b plan.ActionKey) int { return strings.Compare(a.String(), b.String()) },
	) {
		d.after = actionText(d.in.InProgress[key])
		d.succeed(d.in.InProgress[key])
	}
}

// unblock resolves what the pod is waiting for without an action: admission, the network, the exit
// of an init container. Missing objects stay missing, because a user has to create them.
func (d *simulation) unblock(p plan.Plan) bool {
	if d.in.Termination != nil || p.Done || !p.Memory.FinishedAt.IsZero() || finished(p.Status.Phase) {
		return false
	}
	if d.in.Verdict.State == plan.Wait || d.in.Verdict.State == plan.NotRequested {
		d.in.Verdict, d.after = plan.Verdict{State: plan.Admitted}, "admission by the node"
		return true
	}
	if !d.in.Observed.Network.Ready &&
		slices.ContainsFunc(p.Reasons, func(r plan.Reason) bool { return r.Code == "NetworkNotReady" }) {
		d.in.Observed.Network, d.after = plan.NetworkStatus{Ready: true}, "the pod network is ready"
		return true
	}
	if slices.ContainsFunc(p.Reasons, func(r plan.Reason) bool { return r.Code == plan.ReasonDevices }) {
		d.in.Observed.Devices, d.after = nil, "its devices are available"
		return true
	}
	if c, k, runs := runningInit(d.in.Pod, d.in.Observed); runs {
		k.State, k.ExitCode, k.FinishedAt = plan.Exited, 0, d.in.Now
		d.in.Observed = d.in.Observed.WithContainer(k)
		d.after = fmt.Sprintf("the exit of init container %s", c.Name)
		return true
	}
	return false
}

// runningInit returns the running init container. Sidecars do not count.
func runningInit(pod *corev1.Pod, observed plan.Observed) (corev1.Container, plan.Container, bool) {
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			continue
		}
		if k, found := newest(observed, c.Name); found && k.State == plan.Running {
			return c, k, true
		}
	}
	return corev1.Container{}, plan.Container{}, false
}

func newest(observed plan.Observed, container string) (plan.Container, bool) {
	for _, k := range observed.Containers {
		if k.Name == container {
			return k, true
		}
	}
	return plan.Container{}, false
}

func finished(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

// successOf is the outcome of a successful action.
func successOf(observed plan.Observed, action plan.Action, now time.Time) plan.Outcome {
	out := plan.Outcome{Action: action, StartedAt: now, FinishedAt: now}
	switch a := action.(type) {
	case plan.RunSandbox:
		out.Sandbox = &plan.Sandbox{
			ID: fmt.Sprint("simulated-", a.Attempt), Ready: true, Attempt: a.Attempt, CreatedAt: now,
			IPs: []string{"<pod IP>"},
		}
		for _, s := range observed.Sandboxes { // the runtime has created it already
			if s.Attempt == a.Attempt {
				out.Sandbox.ID = s.ID
			}
		}
	case plan.PullImage:
		out.Image = &plan.Image{ID: a.Image}
	case plan.StartContainer:
		k := plan.Container{
			ID: fmt.Sprintf("simulated-%s-%d", a.Name, a.Attempt), Name: a.Name, SandboxID: a.SandboxID,
			Attempt:   a.Attempt,
			CreatedAt: now,
		}
		if existing, found := newest(observed, a.Name); found && existing.Live() && existing.Attempt == a.Attempt {
			k = existing
		}
		k.State, k.StartedAt = plan.Running, now
		out.Container = &k
	case plan.StopContainer:
		for _, k := range observed.Containers {
			if k.ID == a.ID {
				k.State, k.ExitCode, k.FinishedAt = plan.Exited, 137, now
				out.Container = &k
			}
		}
	}
	return out
}

// PlanPod returns the actions for a pod by stage, and the reasons it waits for afterwards. rejection is the
// reason of a rejection by admission, or empty.
func PlanPod(s PodState, change nodeapi.Change, rejection string, now time.Time) nodeapi.PodPlan {
	return planAfter(nil, s, change, rejection, now)
}

// planAfter is PlanPod for a pod that replaces another one.
func planAfter(termination []step, s PodState, change nodeapi.Change, rejection string, now time.Time) nodeapi.PodPlan {
	p := nodeapi.PodPlan{Namespace: s.Pod.Namespace, Name: s.Pod.Name, Change: change, Rejection: rejection}
	last := 0
	if len(termination) > 0 {
		p.Stages = append(p.Stages, nodeapi.StagePlan{Stage: "termination"})
		for _, st := range termination {
			p.Stages[0].Actions = append(p.Stages[0].Actions, planned(st, 0))
			last = max(last, st.sync)
		}
	}
	stages := map[string]int{}
	for _, name := range []string{"configure", "cleanup", "build-run"} {
		stages[name] = len(p.Stages)
		p.Stages = append(p.Stages, nodeapi.StagePlan{Stage: name})
	}
	if s.Verdict.State != plan.Rejected {
		s.Verdict = plan.Verdict{State: plan.Admitted}
	}
	s.Observed.Network = plan.NetworkStatus{Ready: true}
	steps, stopped := simulate(s, now)
	for _, st := range steps {
		i := stages[StageOf(st.action)]
		p.Stages[i].Actions = append(p.Stages[i].Actions, planned(st, last))
	}
	if s.Resize.Reason != "" {
		p.ResizeRejection = s.Resize.Reason + ": " + s.Resize.Message
	}
	for i, r := range stopped {
		if !redundant(stopped, i) &&
			!strings.HasPrefix(r.Code, "Resize") { // the progress of a resize does not block anything
			p.Reasons = append(p.Reasons, reason(r, s.Failed))
		}
	}
	return p
}

// planned converts a step and adds an offset to its sync.
func planned(st step, offset int) nodeapi.PlannedAction {
	name, on, detail := Describe(st.action)
	return nodeapi.PlannedAction{Action: name, Target: on, Detail: detail, Sync: st.sync + offset}
}
