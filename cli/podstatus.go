package cli

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// summary contains the columns READY, STATUS and RESTARTS of a pod.
type summary struct {
	ready, total int
	status       string
	restarts     int32
	lastRestart  time.Time // zero: never, or unknown
}

// summarize computes the columns like kubectl.
func summarize(p *corev1.Pod) summary {
	s := summary{total: len(p.Spec.Containers)}
	sidecar := map[string]bool{}
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecar[c.Name] = true
			s.total++
		}
	}
	waiting := initStatus(p, sidecar)
	initializing := waiting != "" && !isTrue(p, corev1.PodInitialized)
	for _, c := range p.Status.InitContainerStatuses {
		if sidecar[c.Name] && c.Ready && started(c) {
			s.ready++
		}
		if initializing || sidecar[c.Name] {
			s.count(c)
		}
	}
	s.status = waiting
	if !initializing {
		s.status = mainStatus(p)
		for _, c := range p.Status.ContainerStatuses {
			s.count(c)
			if c.Ready && c.State.Running != nil {
				s.ready++
			}
		}
	}
	if p.DeletionTimestamp != nil {
		s.status = terminatingStatus(p, s.status)
	}
	return s
}

func (s *summary) count(c corev1.ContainerStatus) {
	s.restarts += c.RestartCount
	if t := c.LastTerminationState.Terminated; t != nil && t.FinishedAt.After(s.lastRestart) {
		s.lastRestart = t.FinishedAt.Time
	}
}

// initStatus returns the status of the init container that the pod is waiting for, or an empty
// string.
func initStatus(p *corev1.Pod, sidecar map[string]bool) string {
	for i, c := range p.Status.InitContainerStatuses {
		exit, wait := c.State.Terminated, c.State.Waiting
		switch {
		case exit != nil && exit.ExitCode == 0:
			continue
		case sidecar[c.Name] && started(c):
			continue
		case exit != nil:
			return "Init:" + exitReason(exit)
		case wait != nil && wait.Reason != "" && wait.Reason != "PodInitializing":
			return "Init:" + wait.Reason
		default:
			return fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
	}
	return ""
}

// mainStatus returns the reason of the first app container that has one, or else of the pod.
func mainStatus(p *corev1.Pod) string {
	status, running := podReason(p), false
	for _, c := range slices.Backward(p.Status.ContainerStatuses) {
		switch exit, wait := c.State.Terminated, c.State.Waiting; {
		case wait != nil && wait.Reason != "":
			status = wait.Reason
		case exit != nil:
			status = exitReason(exit)
		case c.Ready && c.State.Running != nil:
			running = true
		}
	}
	// One container has completed, but others are running: the pod has not completed.
	if status == "Completed" && running {
		if isTrue(p, corev1.PodReady) {
			return "Running"
		}
		return "NotReady"
	}
	return status
}

func podReason(p *corev1.Pod) string {
	if p.Status.Reason != "" {
		return p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			return c.Reason
		}
	}
	return string(p.Status.Phase)
}

func exitReason(exit *corev1.ContainerStateTerminated) string {
	switch {
	case exit.Reason != "":
		return exit.Reason
	case exit.Signal != 0:
		return fmt.Sprintf("Signal:%d", exit.Signal)
	default:
		return fmt.Sprintf("ExitCode:%d", exit.ExitCode)
	}
}

func terminatingStatus(p *corev1.Pod, status string) string {
	switch {
	case p.Status.Reason == "NodeLost":
		return "Unknown"
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return status
	default:
		return "Terminating"
	}
}

func started(c corev1.ContainerStatus) bool { return c.Started != nil && *c.Started }

func isTrue(p *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}
