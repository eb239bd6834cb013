package controllers

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// replicaStatus counts. failed is why pods could not be made or deleted; again is when
// the next pod that is ready will have been so for long enough.
func replicaStatus(set *appsv1.ReplicaSet, there, ending []*corev1.Pod, failed error, now time.Time) (out appsv1.ReplicaSetStatus, again time.Duration) {
	out.Replicas, out.TerminatingReplicas, out.ObservedGeneration = int32(len(there)), new(int32), set.Generation
	*out.TerminatingReplicas = int32(len(ending))
	template := labels.SelectorFromSet(set.Spec.Template.Labels)
	for _, pod := range there {
		if template.Matches(labels.Set(pod.Labels)) {
			out.FullyLabeledReplicas++
		}
		since := readySince(pod)
		if since == nil {
			continue
		}
		out.ReadyReplicas++
		wait := since.Add(time.Duration(set.Spec.MinReadySeconds) * time.Second).Sub(now)
		switch {
		case set.Spec.MinReadySeconds == 0, wait <= 0 && !since.IsZero():
			out.AvailableReplicas++
		case again == 0 || wait < again:
			again = max(wait, time.Millisecond)
		}
	}
	out.Conditions = replicaFailureConditions(set, len(there), failed, now)
	return out, again
}

// replicaFailureConditions is the set's conditions with what failed now, if anything did.
func replicaFailureConditions(set *appsv1.ReplicaSet, there int, failed error, now time.Time) []appsv1.ReplicaSetCondition {
	is := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	switch {
	case failed == nil:
		return slices.DeleteFunc(slices.Clone(set.Status.Conditions), is)
	case slices.ContainsFunc(set.Status.Conditions, is):
		return set.Status.Conditions
	}
	reason := "FailedCreate"
	if there > desiredReplicas(set) {
		reason = "FailedDelete"
	}
	return append(slices.Clone(set.Status.Conditions), appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: failed.Error(),
	})
}

// desiredReplicas is the number of pods that a set wants.
func desiredReplicas(set *appsv1.ReplicaSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

// readySince is since when a pod is ready; nil: it is not.
func readySince(pod *corev1.Pod) *metav1.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return &c.LastTransitionTime
		}
	}
	return nil
}
