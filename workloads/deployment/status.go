package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The reasons of the conditions.
const (
	reasonUpdated     = "ReplicaSetUpdated"
	reasonCreateError = "ReplicaSetCreateError"
	reasonCreated     = "NewReplicaSetCreated"
	reasonFound       = "FoundNewReplicaSet"
	reasonAvailable   = "NewReplicaSetAvailable"
	reasonTimedOut    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonResumed     = "DeploymentResumed"
	reasonMinimum     = "MinimumReplicasAvailable"
	reasonNoMinimum   = "MinimumReplicasUnavailable"
)

func hasProgressDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != math.MaxInt32
}

// condition returns a condition that changed now.
func condition(now time.Time, kind appsv1.DeploymentConditionType, status corev1.ConditionStatus,
	reason, message string) appsv1.DeploymentCondition {
	at := metav1.NewTime(now.Truncate(time.Second))
	return appsv1.DeploymentCondition{
		Type: kind, Status: status, LastUpdateTime: at, LastTransitionTime: at, Reason: reason, Message: message,
	}
}

func findCondition(conditions []appsv1.DeploymentCondition,
	kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// setCondition sets a condition, unless it has the same status and reason already. The transition time of an unchanged
// status is kept.
func setCondition(status *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) {
	old := findCondition(status.Conditions, c.Type)
	if old != nil && old.Status == c.Status && old.Reason == c.Reason {
		return
	}
	if old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	status.Conditions = append(without(status.Conditions, c.Type), c)
}

// without returns the conditions of other types.
func without(conditions []appsv1.DeploymentCondition,
	kind appsv1.DeploymentConditionType) (out []appsv1.DeploymentCondition) {
	for _, c := range conditions {
		if c.Type != kind {
			out = append(out, c)
		}
	}
	return out
}

func (r *rollout) setProgressing(status corev1.ConditionStatus, reason, message string) {
	s := appsv1.DeploymentStatus{Conditions: r.conditions}
	setCondition(&s, condition(r.in.Now, appsv1.DeploymentProgressing, status, reason, message))
	r.conditions = s.Conditions
}

// checkPaused keeps a paused Deployment from being reported as not progressing, also after it is resumed.
func (r *rollout) checkPaused() {
	progressing := findCondition(r.conditions, appsv1.DeploymentProgressing)
	if !hasProgressDeadline(r.d) || progressing != nil && progressing.Reason == reasonTimedOut {
		return
	}
	reported := progressing != nil && progressing.Reason == reasonPaused
	switch {
	case r.d.Spec.Paused && !reported:
		r.setProgressing(corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !r.d.Spec.Paused && reported:
		r.setProgressing(corev1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	}
}

// calculateStatus returns the status without an estimate of the progress.
func (r *rollout) calculateStatus() appsv1.DeploymentStatus {
	status := appsv1.DeploymentStatus{
		ObservedGeneration: r.d.Generation,
		CollisionCount:     r.collisionCount,
		Conditions:         r.conditions,
	}
	terminating := int32(0)
	status.TerminatingReplicas = &terminating
	size := int32(0)
	for _, rs := range r.all() {
		s := &rs.Status
		size += rs.size()
		status.Replicas += s.Replicas
		status.ReadyReplicas += s.ReadyReplicas
		status.AvailableReplicas += s.AvailableReplicas
		switch {
		case s.TerminatingReplicas != nil:
			terminating += *s.TerminatingReplicas
		case s.ObservedGeneration != 0:
			status.TerminatingReplicas = nil // not known
		}
		if rs == r.newSet {
			status.UpdatedReplicas = s.Replicas
		}
	}
	status.UnavailableReplicas = max(size-status.AvailableReplicas, 0)
	if status.AvailableReplicas >= r.replicas-maxUnavailable(r.d) {
		setCondition(&status, condition(r.in.Now, appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonMinimum,
			"Deployment has minimum availability."))
	} else {
		setCondition(&status, condition(r.in.Now, appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonNoMinimum,
			"Deployment does not have minimum availability."))
	}
	return status
}

// progressStatus returns the status with an estimate of the progress, and sets when the deadline has to be checked.
func (r *rollout) progressStatus() appsv1.DeploymentStatus {
	status := r.calculateStatus()
	if hasProgressDeadline(r.d) {
		r.estimateProgress(&status)
	} else {
		status.Conditions = without(status.Conditions, appsv1.DeploymentProgressing)
	}
	if failure := r.replicaFailure(); failure != nil {
		setCondition(&status, *failure)
	} else {
		status.Conditions = without(status.Conditions, appsv1.DeploymentReplicaFailure)
	}
	return status
}

func (r *rollout) estimateProgress(status *appsv1.DeploymentStatus) {
	current := findCondition(r.conditions, appsv1.DeploymentProgressing)
	if current != nil && current.Reason == reasonAvailable && status.Replicas == status.UpdatedReplicas {
		return // no rollout runs
	}
	subject := fmt.Sprintf("Deployment %q", r.d.Name)
	if r.newSet != nil {
		subject = fmt.Sprintf("ReplicaSet %q", r.newSet.Name)
	}
	progressing := func(value corev1.ConditionStatus, reason, message string) appsv1.DeploymentCondition {
		return condition(r.in.Now, appsv1.DeploymentProgressing, value, reason, subject+message)
	}
	switch {
	case complete(r.d, status):
		setCondition(status, progressing(corev1.ConditionTrue, reasonAvailable, " has successfully progressed."))
	case hasProgressed(&r.d.Status, status):
		// The update time of an equal condition changes too: the deadline runs from the last progress.
		c := progressing(corev1.ConditionTrue, reasonUpdated, " is progressing.")
		if current != nil && current.Status == corev1.ConditionTrue {
			c.LastTransitionTime = current.LastTransitionTime
		}
		status.Conditions = append(without(status.Conditions, appsv1.DeploymentProgressing), c)
	case r.timedOut(current):
		setCondition(status, progressing(corev1.ConditionFalse, reasonTimedOut, " has timed out progressing."))
	}
	c := findCondition(status.Conditions, appsv1.DeploymentProgressing)
	if c != nil && c.Reason != reasonTimedOut && c.Reason != reasonAvailable {
		r.out.Wake = r.deadline(c).Add(time.Second)
	}
}

// deadline returns when a rollout without further progress times out.
func (r *rollout) deadline(c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second)
}

func (r *rollout) timedOut(c *appsv1.DeploymentCondition) bool {
	switch {
	case c == nil || c.Reason == reasonAvailable:
		return false
	case c.Reason == reasonTimedOut:
		return true
	}
	return r.deadline(c).Before(r.in.Now)
}

// hasProgressed reports whether there are more updated, ready or available replicas or fewer old ones.
func hasProgressed(before, now *appsv1.DeploymentStatus) bool {
	return now.UpdatedReplicas > before.UpdatedReplicas || now.ReadyReplicas > before.ReadyReplicas ||
		now.AvailableReplicas > before.AvailableReplicas ||
		now.Replicas-now.UpdatedReplicas < before.Replicas-before.UpdatedReplicas
}

// replicaFailure returns the failure of a ReplicaSet, preferably the new one, as a condition of the Deployment.
func (r *rollout) replicaFailure() *appsv1.DeploymentCondition {
	for _, rs := range r.all() {
		i := slices.IndexFunc(rs.Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
			return c.Type == appsv1.ReplicaSetReplicaFailure
		})
		if i < 0 {
			continue
		}
		c := rs.Status.Conditions[i]
		return &appsv1.DeploymentCondition{
			Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
			LastUpdateTime: c.LastTransitionTime, LastTransitionTime: c.LastTransitionTime,
		}
	}
	return nil
}
