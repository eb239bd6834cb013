package validation

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"berth/internal/rules"
)

func (k *validator) deploymentStatus(d, old *appsv1.Deployment) {
	s := &d.Status
	k.observedGeneration(s.ObservedGeneration)
	k.Counts(
		map[string]int32{"replicas": s.Replicas, "updatedReplicas": s.UpdatedReplicas, "readyReplicas": s.ReadyReplicas,
			"availableReplicas": s.AvailableReplicas, "unavailableReplicas": s.UnavailableReplicas},
	)
	rules.NotNegative(k, rules.Status().Child("terminatingReplicas"), s.TerminatingReplicas)
	k.collisionCount(s.CollisionCount, old.Status.CollisionCount)
	k.NotMoreThan("updatedReplicas", s.UpdatedReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("readyReplicas", s.ReadyReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "readyReplicas", s.ReadyReplicas)
}

func (k *validator) replicaSetStatus(r, _ *appsv1.ReplicaSet) {
	s := &r.Status
	k.observedGeneration(s.ObservedGeneration)
	k.Counts(map[string]int32{"replicas": s.Replicas, "readyReplicas": s.ReadyReplicas,
		"availableReplicas": s.AvailableReplicas, "fullyLabeledReplicas": s.FullyLabeledReplicas})
	rules.NotNegative(k, rules.Status().Child("terminatingReplicas"), s.TerminatingReplicas)
	k.NotMoreThan("fullyLabeledReplicas", s.FullyLabeledReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("readyReplicas", s.ReadyReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "readyReplicas", s.ReadyReplicas)
}

func (k *validator) daemonSetStatus(d, old *appsv1.DaemonSet) {
	s := &d.Status
	k.observedGeneration(s.ObservedGeneration)
	k.Counts(map[string]int32{"currentNumberScheduled": s.CurrentNumberScheduled,
		"numberMisscheduled": s.NumberMisscheduled, "desiredNumberScheduled": s.DesiredNumberScheduled,
		"numberReady": s.NumberReady, "updatedNumberScheduled": s.UpdatedNumberScheduled,
		"numberAvailable": s.NumberAvailable, "numberUnavailable": s.NumberUnavailable})
	k.collisionCount(s.CollisionCount, old.Status.CollisionCount)
}

func (k *validator) statefulSetStatus(set, old *appsv1.StatefulSet) {
	s := &set.Status
	k.observedGeneration(s.ObservedGeneration)
	k.Counts(map[string]int32{"replicas": s.Replicas, "readyReplicas": s.ReadyReplicas,
		"currentReplicas": s.CurrentReplicas, "updatedReplicas": s.UpdatedReplicas,
		"availableReplicas": s.AvailableReplicas})
	k.collisionCount(s.CollisionCount, old.Status.CollisionCount)
	k.NotMoreThan("readyReplicas", s.ReadyReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("currentReplicas", s.CurrentReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("updatedReplicas", s.UpdatedReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "status.replicas", s.Replicas)
	k.NotMoreThan("availableReplicas", s.AvailableReplicas, "status.readyReplicas", s.ReadyReplicas)
}

func (k *validator) observedGeneration(n int64) {
	rules.NotNegative(k, rules.Status().Child("observedGeneration"), &n)
}

// collisionCount validates the number of hash collisions, which must not decrease: the controller would find the same
// collisions again.
func (k *validator) collisionCount(now, before *int32) {
	at := rules.Status().Child("collisionCount")
	rules.NotNegative(k, at, now)
	if before != nil && (now == nil || *now < *before) {
		k.Invalid(at, ptr.Deref(now, 0), "cannot be decremented")
	}
}
