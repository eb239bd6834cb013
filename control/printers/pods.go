package printers

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"

	"berth/podspec"
)

// nodeLost is the reason of a pod on an unreachable node.
const nodeLost = "NodeLost"

var podColumns = func() Columns {
	c := columnsOf(podRow, nameColumn,
		stringColumn("Ready", "Ready and total containers."),
		stringColumn("Status", "Status of the pod."),
		stringColumn("Restarts", "Number of container restarts and time of the last."),
		ageColumn,
		wideColumn(stringColumn("IP", "IP address of the pod.")),
		wideColumn(stringColumn("Node", "Node of the pod.")),
		wideColumn(stringColumn("Nominated Node", "Node on which pods are preempted for this pod.")),
		wideColumn(stringColumn("Readiness Gates", "Satisfied and total readiness gates.")))
	c.conditions = podRowConditions
	return c
}()

func podRow(p *corev1.Pod, now time.Time) []any {
	s := summarize(p)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.lastRestart.IsZero() {
		restarts = fmt.Sprintf("%d (%s ago)", s.restarts, duration.HumanDuration(now.Sub(s.lastRestart.Time)))
	}
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{p.Name, fmt.Sprintf("%d/%d", s.ready, s.total), s.reason, restarts, age(p.CreationTimestamp, now),
		orNone(ip), orNone(p.Spec.NodeName), orNone(p.Status.NominatedNodeName), readinessGates(p)}
}

// podRowConditions returns the condition of rows of terminated pods.
func podRowConditions(obj runtime.Object) []metav1.TableRowCondition {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	row := metav1.TableRowCondition{
		Type:   metav1.RowCompleted,
		Status: metav1.ConditionTrue,
		Reason: string(p.Status.Phase),
	}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		row.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		row.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{row}
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		if conditionTrue(p, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

func conditionTrue(p *corev1.Pod, condition corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == condition {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podSummary holds what a row shows of a pod's containers.
type podSummary struct {
	reason       string
	ready, total int
	restarts     int
	lastRestart  metav1.Time // time of the last termination before a restart
}

// count adds the restarts of a container.
func (s *podSummary) count(c *corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && s.lastRestart.Before(&t.FinishedAt) {
		s.lastRestart = t.FinishedAt
	}
}

// summarize derives the summary from a pod's status. Problems take precedence over progress, and
// init containers over main containers.
func summarize(p *corev1.Pod) podSummary {
	s := podSummary{reason: string(p.Status.Phase), total: len(p.Spec.Containers)}
	if p.Status.Reason != "" {
		s.reason = p.Status.Reason
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	initializing, sidecars := s.initContainers(p)
	if !initializing || conditionTrue(p, corev1.PodInitialized) {
		// Restarts of completed init containers are not counted.
		s.restarts, s.lastRestart = sidecars.restarts, sidecars.lastRestart
		s.mainContainers(p)
	}
	terminal := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == nodeLost:
		s.reason = "Unknown"
	case !terminal:
		s.reason = "Terminating"
	}
	return s
}

// initContainers evaluates init containers up to the first one that has not completed. Sidecars are
// counted separately.
func (s *podSummary) initContainers(p *corev1.Pod) (initializing bool, sidecars podSummary) {
	isSidecar := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if podspec.IsSidecar(c) {
			isSidecar[c.Name] = true
			s.total++
		}
	}
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		s.count(c)
		if isSidecar[c.Name] {
			sidecars.count(c)
		}
		ended, waiting := c.State.Terminated, c.State.Waiting
		switch {
		case ended != nil && ended.ExitCode == 0:
			continue
		case isSidecar[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + terminationReason(ended)
		case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
			s.reason = "Init:" + waiting.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers))
		}
		return true, sidecars
	}
	return false, sidecars
}

// mainContainers sets the reason to that of the first container that has one.
func (s *podSummary) mainContainers(p *corev1.Pod) {
	running := false
	for i := len(p.Status.ContainerStatuses) - 1; i >= 0; i-- {
		c := &p.Status.ContainerStatuses[i]
		s.count(c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			s.reason = terminationReason(c.State.Terminated)
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	if s.reason == "Completed" && running {
		s.reason = "NotReady"
		if conditionTrue(p, corev1.PodReady) {
			s.reason = "Running"
		}
	}
}

// terminationReason returns the reason of a terminated container.
func terminationReason(t *corev1.ContainerStateTerminated) string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}
