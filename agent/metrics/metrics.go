package metrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/pod"
	"berth/agent/status"
	"berth/internal/telemetry"
	"berth/podspec"
)

// New returns callbacks that record the metrics of an agent. handler returns the runtime handler of a pod.
func New(m *telemetry.Metrics, handler func(*corev1.Pod) string) agent.Metrics {
	return agent.Metrics{
		Pods: pod.Metrics{
			SyncFinished:   func(d time.Duration) { m.ObserveSync("sync", d) },
			ActionDuration: m.ObserveStage,
			ActionFinished: func(p *corev1.Pod, r plan.Outcome) {
				if _, is := r.Action.(plan.RunSandbox); is && plan.KindOf(r.Err) != plan.Canceled {
					m.ObserveRunPodSandbox(handler(p), r.FinishedAt.Sub(r.StartedAt), r.Err)
				}
				countOutcome(m, p, r)
			},
			PodStarted:  func(s pod.Start) { countStart(m, s) },
			PodRejected: m.CountAdmissionRejection,
			Divergence:  m.CountDivergence,
		},
		AuditFinished:   m.CountAudit,
		Relisted:        m.ObserveRelist,
		EventStreamLost: m.CountRuntimeEventGap,
		LeakRemoved:     m.CountLeakCleanup,
	}
}

// countStart records a pod start. A pod from an API server was created before this node observed
// it.
func countStart(m *telemetry.Metrics, s pod.Start) {
	m.ObservePodStart(s.Total, s.Overhead)
	total := s.Total
	if podspec.FromAPIServer(s.Pod) && !s.Pod.CreationTimestamp.IsZero() {
		total = max(total, s.At.Sub(s.Pod.CreationTimestamp.Time))
	}
	excluded := s.Pulling
	for _, k := range s.Status.InitContainerStatuses { // running sidecars are not terminated
		if end := k.State.Terminated; end != nil {
			excluded += end.FinishedAt.Sub(end.StartedAt.Time)
		}
	}
	m.ObservePodStartSLI(total, excluded)
}

// countOutcome records the result of an action. A canceled action does not count as an attempt.
func countOutcome(m *telemetry.Metrics, p *corev1.Pod, r plan.Outcome) {
	result := "ok"
	switch {
	case r.Err == nil:
	case plan.KindOf(r.Err) == plan.Canceled:
		m.CountAction(r.Action.Key().Verb, "canceled")
		return
	default:
		result = "error"
	}
	m.CountAction(r.Action.Key().Verb, result)
	switch a := r.Action.(type) {
	case plan.RunSandbox:
		m.CountPodStart(r.Err)
	case plan.EnsureCgroup:
		m.ObserveCgroupOperation("create", r.FinishedAt.Sub(r.StartedAt))
	case plan.ResizeCgroup:
		m.ObserveCgroupOperation("update", r.FinishedAt.Sub(r.StartedAt))
	case plan.RemoveCgroup:
		m.ObserveCgroupOperation("destroy", r.FinishedAt.Sub(r.StartedAt))
	case plan.MountVolume:
		observeVolume(m, p, a.Volume, "volume_mount", r)
	case plan.UnmountVolume:
		observeVolume(m, p, a.Volume, "volume_unmount", r)
	case plan.StartContainer:
		code := ""
		if r.Err != nil {
			code = plan.FailureOf(r, 0).Reason
		}
		m.CountContainerStart(containerType(a.Kind), code, a.Attempt > 0)
	case plan.RemoveContainer:
		if r.Err == nil && a.Garbage {
			m.CountGarbageCollected("container", 1)
		}
	case plan.RemoveSandbox:
		if r.Err == nil && a.Garbage {
			m.CountGarbageCollected("sandbox", 1)
		}
	case plan.PullImage:
		if r.Err == nil && r.Image != nil {
			m.ObserveImagePull(r.Image.Size, r.FinishedAt.Sub(r.StartedAt))
		}
	}
}

// observeVolume records the setup or teardown of a volume.
func observeVolume(m *telemetry.Metrics, p *corev1.Pod, name, operation string, r plan.Outcome) {
	plugin := ""
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == name {
			plugin = podspec.VolumePlugin(v)
		}
	}
	m.ObserveStorageOperation(plugin, operation, r.FinishedAt.Sub(r.StartedAt), r.Err)
}

// containerType is upstream's label value for a kind of container.
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

// State returns the part of the state that the status cache knows.
func State(n status.Counts) telemetry.State {
	s := telemetry.State{
		Pods: n.Pods, StaticPods: n.Static, RunningPods: n.SandboxReady, Containers: n.Containers,
		Volumes: map[telemetry.VolumeState]int{},
	}
	for plugin, desired := range n.Desired {
		s.Volumes[telemetry.VolumeState{Plugin: plugin}] = desired
		s.Volumes[telemetry.VolumeState{Plugin: plugin, Actual: true}] = n.Mounted[plugin]
	}
	return s
}
