package deployment

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxSurge returns how many pods a Deployment may have above its replicas.
func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := limits(d)
	return surge
}

// maxUnavailable returns how many of the replicas may be unavailable by choice.
func maxUnavailable(d *appsv1.Deployment) int32 {
	replicas := replicasOf(d.Spec.Replicas)
	_, unavailable := limits(d)
	return min(unavailable, replicas)
}

// limits resolves maxSurge, rounded up, and maxUnavailable, rounded down. If both are 0, one replica may be
// unavailable, because otherwise no rollout makes progress. Both are 0 for Recreate.
func limits(d *appsv1.Deployment) (surge, unavailable int32) {
	if !isRollingUpdate(d) {
		return 0, 0
	}
	replicas := int(replicasOf(d.Spec.Replicas))
	if u := d.Spec.Strategy.RollingUpdate; u != nil {
		surge, unavailable = scaledValue(u.MaxSurge, replicas, true), scaledValue(u.MaxUnavailable, replicas, false)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// scaledValue resolves a number or percentage. The API server has validated it.
func scaledValue(value *intstr.IntOrString, replicas int, roundUp bool) int32 {
	value = intstr.ValueOrDefault(value, intstr.FromInt32(0))
	n, err := intstr.GetScaledValueFromIntOrPercent(value, replicas, roundUp)
	if err != nil {
		return 0
	}
	return int32(n)
}

func isRollingUpdate(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType
}

// scaleTo changes the number of replicas of a ReplicaSet, and records for which size of the Deployment. It reports
// whether the number changed.
func (r *rollout) scaleTo(rs *replicaSet, n int32) bool {
	if rs.size() == n {
		return false
	}
	r.annotateReplicas(rs)
	rs.Spec.Replicas, rs.changed = &n, true
	return true
}

// scalingEvent reports whether the Deployment has been scaled since an active ReplicaSet was.
func (r *rollout) scalingEvent() bool {
	return slices.ContainsFunc(active(r.all()), func(rs *replicaSet) bool {
		n, ok := annotatedNumber(rs, desiredReplicasAnnotation)
		return ok && n != r.replicas
	})
}

func annotatedNumber(rs *replicaSet, key string) (int32, bool) {
	n, err := strconv.ParseInt(rs.Annotations[key], 10, 32)
	return int32(n), err == nil
}

// scaleExisting scales the existing ReplicaSets to the replicas of the Deployment. It reports whether there was
// anything to write.
func (r *rollout) scaleExisting() bool {
	candidates := active(r.all())
	switch {
	case len(candidates) == 0:
		if rs := r.newest(); rs != nil {
			return r.scaleTo(rs, r.replicas)
		}
	case len(candidates) == 1:
		annotated := r.annotateReplicas(candidates[0])
		return r.scaleTo(candidates[0], r.replicas) || annotated
	case r.saturated():
		done := false
		for _, rs := range active(r.old) {
			done = r.scaleTo(rs, 0) || done
		}
		return done
	case isRollingUpdate(r.d):
		return r.scaleProportionally(candidates)
	}
	return false
}

// newest returns the new ReplicaSet, or the youngest old one, or nil.
func (r *rollout) newest() *replicaSet {
	if r.newSet == nil && len(r.old) > 0 {
		return r.old[len(r.old)-1]
	}
	return r.newSet
}

// saturated reports whether the new ReplicaSet has all replicas of the Deployment, and all are available.
func (r *rollout) saturated() bool {
	if r.newSet == nil {
		return false
	}
	desired, ok := annotatedNumber(r.newSet, desiredReplicasAnnotation)
	return ok && desired == r.replicas && r.newSet.size() == r.replicas &&
		r.newSet.Status.AvailableReplicas == r.replicas
}

// scaleProportionally distributes the difference to the allowed number of replicas over the ReplicaSets by their
// size, so that a rollout in progress is neither sped up nor reverted. The largest gets the rest. Of equal ones, the
// newer come first when replicas are added, and the older when they are removed.
func (r *rollout) scaleProportionally(sets []*replicaSet) bool {
	allowed := int32(0)
	if r.replicas > 0 {
		allowed = r.replicas + maxSurge(r.d)
	}
	change := allowed - total(sets, (*replicaSet).size)
	slices.SortFunc(sets, func(a, b *replicaSet) int {
		age := byAge(a, b)
		if change > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(b.size(), a.size()), age)
	})
	sizes := make([]int32, len(sets))
	rest := change
	for i, rs := range sets {
		share := int32(0)
		switch {
		case rest > 0:
			share = min(r.share(rs), rest)
		case rest < 0:
			share = max(r.share(rs), rest)
		}
		sizes[i] = rs.size() + share
		rest -= share
	}
	sizes[0] = max(sizes[0]+rest, 0)
	done := false
	for i, rs := range sets {
		annotated := r.annotateReplicas(rs)
		done = r.scaleTo(rs, sizes[i]) || annotated || done
	}
	return done
}

// share returns how many replicas a ReplicaSet gains or loses so that it keeps its part of the Deployment.
func (r *rollout) share(rs *replicaSet) int32 {
	if r.replicas == 0 {
		return -rs.size()
	}
	before, ok := annotatedNumber(rs, maxReplicasAnnotation)
	if !ok || before == 0 {
		before = r.d.Status.Replicas
	}
	if before == 0 {
		return 0
	}
	size := float64(rs.size()) * float64(r.replicas+maxSurge(r.d)) / float64(before)
	return int32(math.Round(size)) - rs.size()
}
