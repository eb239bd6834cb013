package daemonset

import (
	"cmp"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// desired returns on how many nodes a pod should run.
func (d *decision) desired() (n int) {
	for _, p := range d.places {
		if p.run {
			n++
		}
	}
	return n
}

// maxSurge returns on how many of n nodes a second pod may run. A percentage is rounded up.
func (d *decision) maxSurge(n int) int {
	u := d.Set.Spec.UpdateStrategy
	if u.Type == appsv1.RollingUpdateDaemonSetStrategyType && u.RollingUpdate != nil {
		return scaled(u.RollingUpdate.MaxSurge, n, 0)
	}
	return 0
}

// maxUnavailable returns on how many of n nodes no pod has to be available. A percentage is rounded up.
func (d *decision) maxUnavailable(n int) int {
	if r := d.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		return scaled(r.MaxUnavailable, n, 1)
	}
	return 1
}

func scaled(value *intstr.IntOrString, n, unset int) int {
	if value == nil {
		return unset
	}
	out, err := intstr.GetScaledValueFromIntOrPercent(value, n, true)
	if err != nil {
		return unset
	}
	return out
}

// rollOut executes step 3.
func (d *decision) rollOut() {
	n := d.desired()
	if surge := d.maxSurge(n); surge > 0 {
		d.surge(surge)
		return
	}
	unavailable := d.maxUnavailable(n)
	if n > 0 && unavailable == 0 {
		unavailable = 1
	}
	d.replace(unavailable)
}

// replace deletes pods of other revisions. Unavailable ones are deleted always.
func (d *decision) replace(budget int) {
	var candidates []*corev1.Pod
	for _, p := range d.places {
		updated, old, ok := d.podsOf(p)
		switch {
		case len(p.pods) == 0 && !p.run:
		case !ok, (updated == nil) == (old == nil):
			budget-- // step 2 creates or deletes pods of the node
		case updated != nil:
			if !d.available(updated) {
				budget--
			}
		case !d.available(old):
			budget--
			d.delete(old)
		default:
			candidates = append(candidates, old)
		}
	}
	for _, pod := range candidates[:max(0, min(budget, len(candidates)))] {
		d.delete(pod)
	}
}

// surge creates a pod beside one of another revision, and deletes the old pod when the new one is available. A node
// that should no longer run a pod keeps its old one until as many pods are available as are desired.
func (d *decision) surge(budget int) {
	var candidates []*place
	var leaving []*corev1.Pod
	available := 0
	for _, p := range d.places {
		updated, old, ok := d.podsOf(p)
		if !ok {
			budget--
			continue
		}
		if counted := cmp.Or(old, updated); counted != nil && p.node && d.available(counted) {
			available++
		}
		switch {
		case old == nil:
		case updated == nil && !p.run:
			switch {
			case !p.node: // the pod garbage collector deletes the pod
			case d.available(old):
				leaving = append(leaving, old)
			default:
				d.delete(old)
			}
		case updated == nil && !d.available(old):
			d.create(p)
		case updated == nil:
			candidates = append(candidates, p)
		case d.available(updated):
			d.delete(old)
		default:
			budget--
		}
	}
	for _, pod := range leaving[:max(0, min(available-d.desired(), len(leaving)))] {
		d.delete(pod)
	}
	for _, p := range candidates[:max(0, min(budget, len(candidates)))] {
		d.create(p)
	}
}

// podsOf returns the pod of the newest revision and the one of another revision that are not terminating. It is not ok
// if there are two of either.
func (d *decision) podsOf(p *place) (updated, old *corev1.Pod, ok bool) {
	for _, pod := range p.pods {
		switch {
		case pod.DeletionTimestamp != nil || d.deleted[pod.UID]:
		case d.isUpdated(pod):
			if updated != nil {
				return nil, nil, false
			}
			updated = pod
		default:
			if old != nil {
				return nil, nil, false
			}
			old = pod
		}
	}
	return updated, old, true
}
