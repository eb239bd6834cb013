package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/scheduler/placement"
)

// Reasons of the scheduler's events, as in kube-scheduler.
const (
	eventScheduled = "Scheduled"
	eventFailed    = "FailedScheduling"
	eventPreempted = "Preempted"
)

const messageGated = "Scheduling is blocked due to non-empty scheduling gates"

// bind creates the binding and posts the result to Run's goroutine.
func (s *Scheduler) bind(ctx context.Context, pod *corev1.Pod, result placement.Result, this attempt) {
	err := s.Client.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: result.Node},
	}, metav1.CreateOptions{})
	switch {
	case err == nil:
		s.observeAttempt(this, resultScheduled)
		s.Log.Info("pod bound", "pod", pod.Namespace+"/"+pod.Name, "node", result.Node, "feasibleNodes",
			result.Feasible)
		s.Events.Eventf(pod, corev1.EventTypeNormal, eventScheduled, "Successfully assigned %s/%s to %s", pod.Namespace,
			pod.Name, result.Node)
	case ctx.Err() != nil:
	default:
		s.observeAttempt(this, resultError)
		s.Log.Warn("pod binding failed", "pod", pod.Namespace+"/"+pod.Name, "node", result.Node, "err", err)
		s.Events.Eventf(pod, corev1.EventTypeWarning, eventFailed, "binding rejected: %v", err)
	}
	s.inbox.post(func() { s.bindingDone(pod.UID, err) })
}

// recordFailure writes the reason for a failed attempt into the pod's status and records an event.
func (s *Scheduler) recordFailure(ctx context.Context, pod *corev1.Pod, nominated, message string) {
	s.Events.Event(pod, corev1.EventTypeWarning, eventFailed, message)
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: pod.Generation,
		Reason: corev1.PodReasonUnschedulable, Message: message,
	}
	if err := s.patchStatus(ctx, pod, condition, &nominated); err != nil {
		s.Log.Warn("pod status update failed", "pod", pod.Namespace+"/"+pod.Name, "err", err)
	}
}

// recordGated writes the PodScheduled condition of a pod with scheduling gates, unless the API
// server has done so.
func (s *Scheduler) recordGated(pod *corev1.Pod) {
	condition := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, ObservedGeneration: pod.Generation,
		Reason: corev1.PodReasonSchedulingGated, Message: messageGated,
	}
	s.callIfCurrent(s.queue.entries[pod.UID], func(ctx context.Context) {
		if err := s.patchStatus(ctx, pod, condition, nil); err != nil {
			s.Log.Warn("pod status update failed", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
	})
}

// evictVictims marks the victims with the DisruptionTarget condition and deletes them.
func (s *Scheduler) evictVictims(ctx context.Context, pod *corev1.Pod, p placement.Preemption) {
	for _, victim := range p.Victims {
		if victim.DeletionTimestamp != nil {
			continue
		}
		err := s.evictVictim(ctx, victim)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			s.Log.Warn("pod preemption failed", "pod", pod.Namespace+"/"+pod.Name, "victim", victim.Namespace+"/"+
				victim.Name,
				"err", err)
			s.inbox.post(func() { s.queue.requeueUnschedulable(pod.UID, time.Now()) })
			continue
		}
		s.Log.Info("pod preempted", "victim", victim.Namespace+"/"+victim.Name, "pod", pod.Namespace+"/"+pod.Name,
			"node",
			p.Node)
		s.Events.Eventf(victim, corev1.EventTypeNormal, eventPreempted, "Preempted by pod %s on node %s", pod.UID,
			p.Node)
	}
}

func (s *Scheduler) evictVictim(ctx context.Context, victim *corev1.Pod) error {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, ObservedGeneration: victim.Generation,
		Reason: corev1.PodReasonPreemptionByScheduler, Message: s.Name +
			": preempting to accommodate a higher priority pod",
	}
	if err := s.patchStatus(ctx, victim, condition, nil); err != nil {
		return err
	}
	err := s.Client.CoreV1().Pods(victim.Namespace).Delete(ctx, victim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &victim.UID},
	})
	if err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	return nil
}

// patchStatus writes one condition and, if not nil, the nominated node, unless the status already
// has both.
func (s *Scheduler) patchStatus(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition,
	nominated *string) error {
	condition.LastTransitionTime = metav1.Now()
	unchanged := false
	for _, have := range pod.Status.Conditions {
		if have.Type != condition.Type {
			continue
		}
		unchanged = have.Reason == condition.Reason && have.Message == condition.Message &&
			have.Status == condition.Status
		if have.Status == condition.Status {
			condition.LastTransitionTime = have.LastTransitionTime
		}
	}
	status := map[string]any{}
	if !unchanged {
		status["conditions"] = []corev1.PodCondition{condition}
	}
	if nominated != nil && *nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = *nominated
		if *nominated == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if len(status) == 0 {
		return nil
	}
	return s.patch(ctx, pod, status)
}

// clearNomination removes the nominated node from the status of a pod.
func (s *Scheduler) clearNomination(ctx context.Context, pod *corev1.Pod) error {
	return s.patch(ctx, pod, map[string]any{"nominatedNodeName": nil})
}

// patch patches the status of a pod, unless the pod was replaced.
func (s *Scheduler) patch(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("patch status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	_, err = s.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
