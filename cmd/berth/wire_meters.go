package main

import (
	"time"

	"berth/agent"
	"berth/agent/plan"
	"berth/telemetry"
)

// metersOf has the agent count what /metrics shows.
func metersOf(m *telemetry.Metrics) agent.Meters {
	return agent.Meters{
		Pass:       func(d time.Duration) { m.Pass("sync", d) },
		Action:     m.Stage,
		Ended:      func(r plan.Outcome) { countOutcome(m, r) },
		Started:    m.PodRunning,
		Rejected:   m.AdmissionRejected,
		Audit:      m.Audit,
		Divergence: m.Diverged,
		Missed:     m.RuntimeEventsMissed,
		Swept:      m.Swept,
	}
}

// countOutcome counts the end of an action. One that was called off is no try.
func countOutcome(m *telemetry.Metrics, r plan.Outcome) {
	result := "ok"
	switch {
	case r.Err == nil:
	case plan.KindOf(r.Err) == plan.Canceled:
		m.Action(r.Action.Key().Verb, "canceled")
		return
	default:
		result = "error"
	}
	m.Action(r.Action.Key().Verb, result)
	switch a := r.Action.(type) {
	case plan.RunSandbox:
		m.PodStarted(r.Err)
	case plan.StartContainer:
		code := ""
		if r.Err != nil {
			code = plan.FailureOf(r, 0).Reason
		}
		m.ContainerStarted(containerType(a.Kind), code, a.Attempt > 0)
	case plan.RemoveContainer:
		if r.Err == nil {
			m.Collected("container", 1)
		}
	case plan.RemoveSandbox:
		if r.Err == nil {
			m.Collected("sandbox", 1)
		}
	case plan.PullImage:
		if r.Err == nil && r.Image != nil {
			m.ImagePulled(r.Image.Size, r.Ended.Sub(r.Began))
		}
	}
}

// containerType is upstream's label for a kind of container.
func containerType(k plan.ContainerKind) string {
	switch k {
	case plan.Init, plan.Sidecar:
		return "init_container"
	case plan.Ephemeral:
		return "ephemeral_container"
	case plan.Main:
	}
	return "container"
}

// badFiles counts the manifest files that cannot be used as they are now.
func (b *berth) badFiles() int {
	bad := map[string]bool{}
	for _, snap := range b.agent.Snapshots() {
		for _, f := range snap.Bad {
			bad[f.Path] = true
		}
	}
	return len(bad)
}
