package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// mayRestart reports whether a container that has exited runs again.
func (d *decider) mayRestart(c spec, k Container) bool {
	return d.mem.FinishedAt.IsZero() && d.mem.Termination == nil && d.policyAllowsRestart(c, k)
}

// policyAllowsRestart is mayRestart for a pod that may have completed.
func (d *decider) policyAllowsRestart(c spec, k Container) bool {
	switch c.kind {
	case Ephemeral:
		return k.Interrupted // it did not run yet
	case Sidecar:
		return true
	case Main, Init:
	}
	if k.ID != "" && d.mem.Restarts[k.Name].Replacing == k.ID {
		return true // stopped for replacement
	}
	if d.fromEarlierRound(k) {
		return true // new round: all containers run again
	}
	if k.Interrupted {
		return true // never ran, so no policy applies
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
	default: // Always, which is OnFailure for init containers
		return c.kind != Init || k.ExitCode != 0
	}
}

// WillRestart reports whether the named container, which has exited or is about to, will run again.
// The input must contain the memory of the last plan.
func WillRestart(in Input, name string) bool {
	d := newDecider(in)
	if d.terminal() || in.Verdict.State != Admitted {
		return false
	}
	for _, c := range d.specs {
		if c.Name != name {
			continue
		}
		k, exists := d.newest(name)
		if !exists {
			k = d.mem.Exits[name]
		}
		return k.Live() || d.mayRestart(c, k)
	}
	return false
}

// restartRule returns the action of the first matching restart rule of the container.
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

// nextStart counts an exit once and returns when the next start is allowed: immediately after the
// first exit, then after CrashBase with doubling. The count restarts for a container that ran for
// CrashReset or whose spec has changed. An exit for replacement does not count.
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
	if from.IsZero() || from.After(d.Now) { // unknown, or the clock was set back
		from = d.Now
	}
	r.Count++
	r.NotBefore = from.Add(d.Limits.crashDelay(r))
	d.mem.Restarts[k.Name] = r
	return r.NotBefore
}

// crashDelay returns the delay between the last counted exit and the next start.
func (l Limits) crashDelay(r RestartState) time.Duration {
	if r.Count < 2 {
		return 0
	}
	return backoffDelay(l.CrashBase, r.Count-2, l.CrashMax)
}

// finished reports whether the pod has completed: no app container will run again.
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
		if k, exists := d.newest(c.Name); !exists || k.Live() || d.mayRestart(c, k) {
			return false
		}
	}
	return mains > 0
}

// initFailed reports whether an init container has failed and will not run again.
func (d *decider) initFailed() bool {
	for _, c := range d.specs {
		if c.kind != Init {
			continue
		}
		if k, ok := d.newest(c.Name); ok && k.State == Exited && k.ExitCode != 0 && !d.policyAllowsRestart(c, k) {
			return true
		}
	}
	return false
}
