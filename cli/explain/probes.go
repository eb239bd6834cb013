package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/nodeapi"
)

// ProbeState is the state of one probe of a container instance.
type ProbeState struct {
	ContainerID   string // container ID
	Probed        plan.ProbeState
	Passed        *bool // result according to the thresholds; nil: not determined yet
	NextRun       time.Time
	Running       bool
	MissedPeriods int64
	Recent        []nodeapi.ProbeRun
}

// Probes returns all probes of the pod, including those that are not running.
func Probes(s PodState, states []ProbeState, now time.Time) nodeapi.PodProbes {
	out := nodeapi.PodProbes{
		Namespace: s.Pod.Namespace,
		Name:      s.Pod.Name,
		UID:       s.Pod.UID,
		Now:       now,
		Probes:    []nodeapi.Probe{},
	}
	for _, list := range [][]corev1.Container{s.Pod.Spec.InitContainers, s.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			for _, p := range probesIn(c) {
				out.Probes = append(out.Probes, probe(s, c, p, states))
			}
		}
	}
	return out
}

// specified is one probe of a container's spec.
type specified struct {
	kind plan.ProbeKind
	spec *corev1.Probe
}

func probesIn(c *corev1.Container) []specified {
	return slices.DeleteFunc([]specified{
		{
			plan.StartupProbe,
			c.StartupProbe,
		}, {plan.ReadinessProbe, c.ReadinessProbe}, {plan.LivenessProbe, c.LivenessProbe},
	}, func(p specified) bool { return p.spec == nil })
}

func probe(s PodState, c *corev1.Container, p specified, states []ProbeState) nodeapi.Probe {
	out := nodeapi.Probe{
		Container: c.Name, Kind: strings.ToLower(string(p.kind)), Action: probeAction(p.spec),
		State:               nodeapi.ProbeWaiting,
		InitialDelaySeconds: p.spec.InitialDelaySeconds, TimeoutSeconds: p.spec.TimeoutSeconds,
		PeriodSeconds:    p.spec.PeriodSeconds,
		SuccessThreshold: p.spec.SuccessThreshold, FailureThreshold: p.spec.FailureThreshold,
	}
	k, seen := newest(s.Observed, c.Name)
	if !seen || k.State != plan.Running {
		out.WaitingFor = "the container to run"
		return out
	}
	out.ContainerID = k.ID
	h := s.Memory.Health[k.ID]
	i := slices.IndexFunc(states, func(m ProbeState) bool { return m.ContainerID == k.ID && m.Probed.Kind == p.kind })
	if i >= 0 {
		m := states[i]
		out.NextRun, out.Running, out.MissedPeriods, out.Recent = m.NextRun, m.Running, m.MissedPeriods, m.Recent
		if m.Probed.OK {
			out.Successes = m.Probed.Consecutive
		} else {
			out.Failures = m.Probed.Consecutive
		}
	}
	switch {
	case p.kind == plan.StartupProbe && h.Started:
		out.State, out.NextRun = nodeapi.ProbeDone, time.Time{}
	case p.kind != plan.StartupProbe && c.StartupProbe != nil && !h.Started:
		out.WaitingFor = "the startup probe"
	case i < 0:
		out.WaitingFor = "the container to be started"
	case states[i].Passed == nil:
		out.State = nodeapi.ProbePending
	case *states[i].Passed:
		out.State = nodeapi.ProbePassing
	default:
		out.State = nodeapi.ProbeFailing
	}
	return out
}

// probeAction describes the handler of a probe with the field names of the manifest.
func probeAction(p *corev1.Probe) string {
	switch {
	case p.Exec != nil:
		return "exec " + strings.Join(p.Exec.Command, " ")
	case p.HTTPGet != nil:
		return fmt.Sprintf(
			"httpGet %s://%s:%s%s",
			strings.ToLower(string(p.HTTPGet.Scheme)),
			p.HTTPGet.Host,
			p.HTTPGet.Port.String(),
			p.HTTPGet.Path,
		)
	case p.TCPSocket != nil:
		return fmt.Sprintf("tcpSocket %s:%s", p.TCPSocket.Host, p.TCPSocket.Port.String())
	case p.GRPC != nil && p.GRPC.Service != nil && *p.GRPC.Service != "":
		return fmt.Sprintf("grpc :%d %s", p.GRPC.Port, *p.GRPC.Service)
	case p.GRPC != nil:
		return fmt.Sprintf("grpc :%d", p.GRPC.Port)
	}
	return ""
}

// unhealthy returns the running containers that are not started or not ready because of a probe.
func unhealthy(s PodState) (out []nodeapi.WaitReason) {
	if !s.Limits.Probing {
		return nil
	}
	for _, list := range [][]corev1.Container{s.Pod.Spec.InitContainers, s.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			k, seen := newest(s.Observed, c.Name)
			if !seen || k.State != plan.Running {
				continue
			}
			h := s.Memory.Health[k.ID]
			switch {
			case c.StartupProbe != nil && !h.Started:
				out = append(out, failing(c.Name, plan.StartupProbe, c.StartupProbe, h, k))
			case c.ReadinessProbe != nil && !h.Ready:
				out = append(out, failing(c.Name, plan.ReadinessProbe, c.ReadinessProbe, h, k))
			}
		}
	}
	return out
}

func failing(name string, kind plan.ProbeKind, spec *corev1.Probe, h plan.Health, k plan.Container) nodeapi.WaitReason {
	w := nodeapi.WaitReason{Reason: string(kind) + "Probe", Target: name, Since: k.StartedAt}
	text := strings.ToLower(string(kind)) + " probe"
	result := h.StateOf(kind)
	switch {
	case result == nil && spec.InitialDelaySeconds > 0:
		w.Message = fmt.Sprintf(
			"%s (%s) has not succeeded yet; initial delay %ds",
			text,
			probeAction(spec),
			spec.InitialDelaySeconds,
		)
	case result == nil || result.Consecutive == 0 || result.OK:
		w.Message = fmt.Sprintf("%s (%s) has not succeeded yet", text, probeAction(spec))
	default:
		w.Message = joined(fmt.Sprintf("%s failing (%s)", text, probeAction(spec)), result.Failure)
		w.Failures = int(result.Consecutive)
		w.Details = []nodeapi.Detail{
			{Name: "failureThreshold", Value: fmt.Sprint(spec.FailureThreshold)},
			{Name: "period", Value: fmt.Sprintf("%ds", spec.PeriodSeconds)},
		}
	}
	return w
}
