package controllers

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/workloads"
)

// replicaStatus computes the status of the set. manageErr is the error of creating or deleting
// pods. requeueAfter is when the next ready pod becomes available, or 0.
func replicaStatus(set *appsv1.ReplicaSet, active, terminating []*corev1.Pod, manageErr error,
	now time.Time) (out appsv1.ReplicaSetStatus, requeueAfter time.Duration) {
	out.Replicas, out.TerminatingReplicas, out.ObservedGeneration = int32(len(active)), new(int32), set.Generation
	*out.TerminatingReplicas = int32(len(terminating))
	template := labels.SelectorFromSet(set.Spec.Template.Labels)
	for _, pod := range active {
		if template.Matches(labels.Set(pod.Labels)) {
			out.FullyLabeledReplicas++
		}
		since := workloads.ReadySince(pod)
		if since == nil {
			continue
		}
		out.ReadyReplicas++
		wait := since.Add(time.Duration(set.Spec.MinReadySeconds) * time.Second).Sub(now)
		switch {
		case set.Spec.MinReadySeconds == 0, wait <= 0 && !since.IsZero():
			out.AvailableReplicas++
		case requeueAfter == 0 || wait < requeueAfter:
			requeueAfter = max(wait, time.Millisecond)
		}
	}
	out.Conditions = replicaFailureConditions(set, len(active), manageErr, now)
	return out, requeueAfter
}

// replicaFailureConditions returns the conditions of the set, with ReplicaFailure if manageErr is
// not nil.
func replicaFailureConditions(set *appsv1.ReplicaSet, active int, manageErr error,
	now time.Time) []appsv1.ReplicaSetCondition {
	isReplicaFailure := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	switch {
	case manageErr == nil:
		return slices.DeleteFunc(slices.Clone(set.Status.Conditions), isReplicaFailure)
	case slices.ContainsFunc(set.Status.Conditions, isReplicaFailure):
		return set.Status.Conditions
	}
	reason := "FailedCreate"
	if active > desiredReplicas(set) {
		reason = "FailedDelete"
	}
	return append(slices.Clone(set.Status.Conditions), appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Reason: reason, Message: manageErr.Error(),
	})
}

// desiredReplicas returns the desired number of pods of the set.
func desiredReplicas(set *appsv1.ReplicaSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}
