package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// mayRestart says whether a container that has exited is to run again.
func (d *decider) mayRestart(c spec, k Container) bool {
	return d.mem.FinishedAt.IsZero() && d.mem.Termination == nil && d.policyAllowsRestart(c, k)
}

// policyAllowsRestart is mayRestart without regard to the pod being over.
func (d *decider) policyAllowsRestart(c spec, k Container) bool {
	switch c.kind {
	case Ephemeral:
		return k.Interrupted // it runs once, and has not yet
	case Sidecar:
		return true
	case Main, Init:
	}
	if k.ID != "" && d.mem.Restarts[k.Name].Replacing == k.ID {
		return true // stopped only to be replaced
	}
	if d.fromEarlierRound(k) {
		return true // a new round: all containers run again
	}
	if k.Interrupted {
		return true // it never ran, and no policy speaks of that
	}
	if action, ruled := restartRule(c, k.ExitCode); ruled {
		return action == corev1.ContainerRestartRuleActionRestart || triggersRestartAll(c, k.ExitCode)
	}
	policy := d.Pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return k.ExitCode != 0
	default: // Always; an init container that has succeeded is done
		return c.kind != Init || k.ExitCode != 0
	}
}

// WillRestart reports whether the named container, which has ended or is about to,
// runs again as things stand. The memory must be that of the last plan.
func WillRestart(in Input, name string) bool {
	d := newDecider(in)
	if d.terminal() || in.Verdict.State != Admitted {
		return false
	}
	for _, c := range d.specs {
		if c.Name != name {
			continue
		}
		k, seen := d.newest(name)
		if !seen {
			k = d.mem.Exits[name]
		}
		return k.Live() || d.mayRestart(c, k)
	}
	return false
}

// restartRule is the answer of the container's own restart rules; the first that
// matches decides.
func restartRule(c spec, exit int32) (action corev1.ContainerRestartRuleAction, ruled bool) {
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes == nil {
			continue
		}
		in := slices.Contains(r.ExitCodes.Values, exit)
		if in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return r.Action, true
		}
	}
	return "", false
}

// nextStart counts one exit once and returns when the next start is allowed. The
// first restart is at once, then base, doubling. A container that ran long
// enough, or was given another image, starts afresh. One that was stopped only to
// be replaced has not crashed: its exit counts for nothing.
func (d *decider) nextStart(c spec, k Container) time.Time {
	r := d.mem.Restarts[k.Name]
	hash := podspec.ContainerHash(c.Container)
	if r.CountedID == k.ID && r.SpecHash == hash {
		if wait := d.Limits.crashDelay(r); r.NotBefore.Sub(d.Now) > wait { // the clock was set back
			r.NotBefore = d.Now.Add(wait)
			d.mem.Restarts[k.Name] = r
		}
		return r.NotBefore
	}
	if r.SpecHash != hash || k.FinishedAt.Sub(k.StartedAt) >= d.Limits.CrashReset && !k.StartedAt.IsZero() {
		r.Count = 0
	}
	r.CountedID, r.SpecHash = k.ID, hash
	if r.Replacing == k.ID {
		r.NotBefore = d.Now
		d.mem.Restarts[k.Name] = r
		return r.NotBefore
	}
	from := k.FinishedAt
	if from.IsZero() || from.After(d.Now) { // the runtime does not know, or the clock was stepped
		from = d.Now
	}
	r.Count++
	r.NotBefore = from.Add(d.Limits.crashDelay(r))
	d.mem.Restarts[k.Name] = r
	return r.NotBefore
}

// crashDelay is how long after the exit that was counted last the next start is
// held back.
func (l Limits) crashDelay(r RestartState) time.Duration {
	if r.Count < 2 {
		return 0
	}
	return backoffDelay(l.CrashBase, r.Count-2, l.CrashMax)
}

// finished reports whether the pod's own work is over: no main container will
// ever run (again).
func (d *decider) finished() bool {
	if !d.mem.FinishedAt.IsZero() || d.initFailed() {
		return true
	}
	mains := 0
	for _, c := range d.specs {
		if c.kind != Main {
			continue
		}
		mains++
		if k, seen := d.newest(c.Name); !seen || k.Live() || d.mayRestart(c, k) {
			return false
		}
	}
	return mains > 0
}

// initFailed reports whether an init container failed and will not run again.
func (d *decider) initFailed() bool {
	for _, c := range d.specs {
		if c.kind != Init {
			continue
		}
		if k, seen := d.newest(c.Name); seen && k.State == Exited && k.ExitCode != 0 && !d.policyAllowsRestart(c, k) {
			return true
		}
	}
	return false
}
