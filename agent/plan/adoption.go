package plan

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AdoptedMemory returns the memory of a pod that the kubelet has run so far: what berth would remember
// if it had run the pod itself. The status on the API server has the readiness of the containers, so
// that an adoption changes none. A pod without that status, such as a static pod of a node without a
// server, has its probes run first.
func AdoptedMemory(pod *corev1.Pod, sandboxes []Sandbox, containers []Container) Memory {
	m := Memory{
		Phase: pod.Status.Phase, Reason: pod.Status.Reason, Message: pod.Status.Message,
		Conditions: pod.Status.Conditions, Health: map[string]Health{}, Restarts: map[string]RestartState{},
	}
	switch {
	case pod.Status.StartTime != nil:
		m.StartTime = pod.Status.StartTime.Time
	case len(sandboxes) > 0: // the oldest is the last
		m.StartTime = sandboxes[len(sandboxes)-1].CreatedAt
	}
	for _, ip := range pod.Status.PodIPs {
		m.IPs = append(m.IPs, ip.IP)
	}
	live := map[string]bool{}
	for _, k := range containers {
		live[k.ID] = k.State == Running
		if r := m.Restarts[k.Name]; k.Attempt+1 > r.NextAttempt {
			r.NextAttempt = k.Attempt + 1
			m.Restarts[k.Name] = r
		}
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if r := m.Restarts[s.Name]; s.ContainerID != "" && uint32(max(s.RestartCount, 0))+1 > r.NextAttempt {
				r.NextAttempt = uint32(max(s.RestartCount, 0)) + 1
				m.Restarts[s.Name] = r
			}
			if _, id, _ := strings.Cut(s.ContainerID, "://"); live[id] && s.State.Running != nil {
				m.Health[id] = adoptedHealth(s.Started != nil && *s.Started, s.Ready)
			}
		}
	}
	return m
}

// adoptedHealth returns the probe results that follow from a container status. The probes continue from
// these results: a probe that has succeeded must fail as often as its threshold says before the status
// changes. A ready container has passed its startup probe, even if the kubelet has restarted since and
// reports it as not started until its next probe.
func adoptedHealth(started, ready bool) Health {
	started = started || ready
	h := Health{Started: started, Ready: ready}
	succeeded := func(kind ProbeKind) ProbeState {
		return ProbeState{Kind: kind, OK: true, Consecutive: 1, Succeeded: true}
	}
	if started {
		h.Probes = append(h.Probes, succeeded(StartupProbe), succeeded(LivenessProbe))
	}
	if ready {
		h.Probes = append(h.Probes, succeeded(ReadinessProbe))
	}
	return h
}
