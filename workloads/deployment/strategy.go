package deployment

import (
	"cmp"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
)

// rollingUpdate replaces the old ReplicaSets step by step.
func (r *rollout) rollingUpdate() {
	if r.ensureNewReplicaSet() && !r.scaleNew() && !r.scaleDownOld() {
		r.cleanUpWhenComplete()
	}
}

// recreate ends the old ReplicaSets before it starts the new one.
func (r *rollout) recreate() {
	scaled := false
	for _, rs := range active(r.old) {
		scaled = r.scaleTo(rs, 0) || scaled
	}
	if scaled || r.oldPodsExist() || !r.ensureNewReplicaSet() {
		return
	}
	r.scaleTo(r.newSet, r.replicas)
	r.cleanUpWhenComplete()
}

// newSetSize returns how many replicas the new ReplicaSet may have now.
func (r *rollout) newSetSize() int32 {
	size := r.newSet.size()
	if !isRollingUpdate(r.d) {
		return r.replicas
	}
	allowance := r.replicas + maxSurge(r.d) - total(r.all(), (*replicaSet).size)
	if allowance <= 0 {
		return size
	}
	return size + min(allowance, r.replicas-size)
}

// scaleNew scales the new ReplicaSet as far as it may now. It reports whether its size changed.
func (r *rollout) scaleNew() bool {
	if r.newSet.size() > r.replicas {
		return r.scaleTo(r.newSet, r.replicas)
	}
	return r.scaleTo(r.newSet, r.newSetSize())
}

// scaleDownOld scales the old ReplicaSets down as far as the minimum of available replicas allows. It reports whether
// a size changed.
func (r *rollout) scaleDownOld() bool {
	minAvailable := r.replicas - maxUnavailable(r.d)
	newUnavailable := r.newSet.size() - r.newSet.available()
	removable := total(r.all(), (*replicaSet).size) - minAvailable - newUnavailable
	if removable <= 0 {
		return false
	}
	// Unhealthy replicas go first: ReplicaSets delete those that are not ready before others.
	cleaned := false
	for _, rs := range active(r.old) {
		n := min(removable, rs.size()-rs.available())
		cleaned = r.scaleTo(rs, rs.size()-n) || cleaned
		removable -= n
	}
	spare := total(r.all(), (*replicaSet).available) - minAvailable
	scaledDown := false
	for _, rs := range active(r.old) {
		if spare <= 0 {
			break
		}
		n := min(spare, rs.size())
		scaledDown = r.scaleTo(rs, rs.size()-n) || scaledDown
		spare -= n
	}
	return cleaned || scaledDown
}

func (r *rollout) cleanUpWhenComplete() {
	if complete(r.d, &r.d.Status) {
		r.cleanUp()
	}
}

// cleanUp deletes old ReplicaSets beyond the revision history limit, lowest revision first. One that has or may get
// replicas stays, and still counts.
func (r *rollout) cleanUp() {
	limit := r.d.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return
	}
	var kept []*replicaSet
	for _, rs := range r.old {
		if rs.DeletionTimestamp == nil {
			kept = append(kept, rs)
		}
	}
	slices.SortStableFunc(kept, func(a, b *replicaSet) int { return cmp.Compare(revisionOf(a), revisionOf(b)) })
	for _, rs := range kept[:max(len(kept)-int(*limit), 0)] {
		if rs.Status.Replicas == 0 && rs.size() == 0 && rs.Generation <= rs.Status.ObservedGeneration && !rs.changed {
			r.deleted = append(r.deleted, rs.observed)
		}
	}
}

// complete reports whether a status says that the Deployment runs its template only, with all replicas available.
func complete(d *appsv1.Deployment, status *appsv1.DeploymentStatus) bool {
	n := replicasOf(d.Spec.Replicas)
	return status.UpdatedReplicas == n && status.Replicas == n && status.AvailableReplicas == n &&
		status.ObservedGeneration >= d.Generation
}
