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

// step is one action that is to come.
type step struct {
	action plan.Action
	pass   int
	at     time.Time
	after  string // what came in the pass before
}

// bounds of what is imagined: enough for a pod of many containers.
const (
	maxPasses = 200
	maxTime   = 30 * time.Minute
)

// imagine drives plan.Decide, from where the pod is now, through a host that
// does whatever it is told. It lists what the host is told, and why that ends
// where it ends: what must change from outside.
func imagine(s PodState, now time.Time) (out []step, stopped []plan.Reason) {
	d := dream{in: plan.Input{
		Now: now, Pod: s.Pod, Verdict: s.Verdict, Reserved: s.Reserved, Resize: s.Resize, End: s.Termination, Seen: s.Observed, Refs: s.Refs,
		Busy: map[plan.OpKey]plan.Action{}, Failed: maps.Clone(s.Failed), Memory: s.Memory, Limits: s.Limits,
	}}
	d.in.Limits.Probing = false // in a dream all probes succeed
	for _, b := range s.InProgress {
		d.in.Busy[b.Action.Key()] = b.Action
	}
	for n := 1; n <= maxPasses; n++ {
		p := plan.Decide(d.in)
		d.in.Memory = p.Memory
		actions := p.Actions()
		for _, a := range actions {
			out = append(out, step{a, n, d.in.Now, d.after})
		}
		for _, a := range actions {
			d.obey(a)
		}
		switch {
		case len(d.in.Busy) > 0:
			d.finish()
		case len(actions) > 0:
			d.after = words(actions[len(actions)-1])
		case d.relent(p):
		case p.Done || p.Wake.IsZero() || p.Wake.Sub(now) > maxTime:
			return out, p.Why
		default:
			d.in.Now, d.after = p.Wake, "the back-off"
		}
	}
	return out, nil
}

// dream is a pod on an obedient host.
type dream struct {
	in    plan.Input
	after string // what was waited for last
}

// obey is the good end of an action.
func (d *dream) obey(a plan.Action) {
	d.in.Seen = d.in.Seen.After(obeyed(d.in.Seen, a, d.in.Now))
	delete(d.in.Failed, a.Key())
	delete(d.in.Busy, a.Key())
}

// finish ends what is under way.
func (d *dream) finish() {
	for _, key := range slices.SortedFunc(maps.Keys(d.in.Busy), func(a, b plan.OpKey) int { return strings.Compare(a.String(), b.String()) }) {
		d.after = words(d.in.Busy[key])
		d.obey(d.in.Busy[key])
	}
}

// relent lets happen what the pod waits for and nobody is told to do: the
// node's yes, its network, the end of an init container. Objects that are
// missing stay so, because a user must bring them.
func (d *dream) relent(p plan.Plan) bool {
	if d.in.End != nil || p.Done || !p.Memory.Finished.IsZero() || over(p.Status.Phase) {
		return false
	}
	if d.in.Verdict.State == plan.Wait || d.in.Verdict.State == plan.NotAsked {
		d.in.Verdict, d.after = plan.Verdict{State: plan.OK}, "the node lets it in"
		return true
	}
	if !d.in.Seen.Network.Ready && slices.ContainsFunc(p.Why, func(r plan.Reason) bool { return r.Code == "NetworkNotReady" }) {
		d.in.Seen.Network, d.after = plan.NetworkSeen{Ready: true}, "the pod network is ready"
		return true
	}
	if slices.ContainsFunc(p.Why, func(r plan.Reason) bool { return r.Code == plan.ReasonDevices }) {
		d.in.Seen.Devices, d.after = nil, "its devices are there"
		return true
	}
	if c, k, runs := runningInit(d.in.Pod, d.in.Seen); runs {
		k.State, k.ExitCode, k.FinishedAt = plan.Exited, 0, d.in.Now
		d.in.Seen = d.in.Seen.WithContainer(k)
		d.after = fmt.Sprintf("init container %s has ended", c.Name)
		return true
	}
	return false
}

// runningInit returns the init container that runs now; a sidecar is none.
func runningInit(pod *corev1.Pod, seen plan.Observed) (corev1.Container, plan.Container, bool) {
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			continue
		}
		if k, here := newest(seen, c.Name); here && k.State == plan.Running {
			return c, k, true
		}
	}
	return corev1.Container{}, plan.Container{}, false
}

func newest(seen plan.Observed, container string) (plan.Container, bool) {
	for _, k := range seen.Containers {
		if k.Name == container {
			return k, true
		}
	}
	return plan.Container{}, false
}

func over(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

// obeyed is what comes of an action that ends well.
func obeyed(seen plan.Observed, action plan.Action, now time.Time) plan.Outcome {
	out := plan.Outcome{Action: action, Began: now, Ended: now}
	switch a := action.(type) {
	case plan.RunSandbox:
		out.Sandbox = &plan.Sandbox{ID: fmt.Sprint("imagined-", a.Attempt), Ready: true, Attempt: a.Attempt, CreatedAt: now, IPs: []string{"<pod IP>"}}
		for _, s := range seen.Sandboxes { // the runtime has it already
			if s.Attempt == a.Attempt {
				out.Sandbox.ID = s.ID
			}
		}
	case plan.PullImage:
		out.Image = &plan.Image{ID: a.Image}
	case plan.StartContainer:
		k := plan.Container{ID: fmt.Sprintf("imagined-%s-%d", a.Name, a.Attempt), Name: a.Name, SandboxID: a.SandboxID, Attempt: a.Attempt, CreatedAt: now}
		if was, here := newest(seen, a.Name); here && was.Live() && was.Attempt == a.Attempt {
			k = was
		}
		k.State, k.StartedAt = plan.Running, now
		out.Container = &k
	case plan.StopContainer:
		for _, k := range seen.Containers {
			if k.ID == a.ID {
				k.State, k.ExitCode, k.FinishedAt = plan.Exited, 137, now
				out.Container = &k
			}
		}
	}
	return out
}

// PlanPod says what would be done for a pod, stage by stage, and what it then
// waits for. refused is the answer of stage admit if it is not yes.
func PlanPod(s PodState, change nodeapi.Change, refused string, now time.Time) nodeapi.PodPlan {
	return planAfter(nil, s, change, refused, now)
}

// planAfter is Plan for a pod that has to wait for the end of another one.
func planAfter(ending []step, s PodState, change nodeapi.Change, refused string, now time.Time) nodeapi.PodPlan {
	p := nodeapi.PodPlan{Namespace: s.Pod.Namespace, Name: s.Pod.Name, Change: change, Rejection: refused}
	last := 0
	if len(ending) > 0 {
		p.Stages = append(p.Stages, nodeapi.StagePlan{Stage: "ending"})
		for _, st := range ending {
			p.Stages[0].Actions = append(p.Stages[0].Actions, planned(st, 0))
			last = max(last, st.pass)
		}
	}
	stages := map[string]int{}
	for _, name := range []string{"configure", "cleanup", "build-run"} {
		stages[name] = len(p.Stages)
		p.Stages = append(p.Stages, nodeapi.StagePlan{Stage: name})
	}
	if s.Verdict.State != plan.Rejected {
		s.Verdict = plan.Verdict{State: plan.OK}
	}
	s.Observed.Network = plan.NetworkSeen{Ready: true}
	steps, stopped := imagine(s, now)
	for _, st := range steps {
		i := stages[StageOf(st.action)]
		p.Stages[i].Actions = append(p.Stages[i].Actions, planned(st, last))
	}
	if s.Resize.Reason != "" {
		p.ResizeRejection = s.Resize.Reason + ": " + s.Resize.Message
	}
	for i, r := range stopped {
		if !told(stopped, i) && !strings.HasPrefix(r.Code, "Resize") { // how a resize goes is no reason to wait
			p.Reasons = append(p.Reasons, reason(r, s.Failed))
		}
	}
	return p
}

// planned is a step that comes so many passes later than was imagined.
func planned(st step, later int) nodeapi.PlannedAction {
	name, on, detail := Describe(st.action)
	return nodeapi.PlannedAction{Action: name, Target: on, Detail: detail, Sync: st.pass + later}
}
