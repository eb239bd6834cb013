package statefulset

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/workloads"
)

// rollOut executes step 4.
func (d *decision) rollOut() {
	budget := d.maxUnavailable()
	for _, r := range d.replicas {
		if r.pod == nil || d.deleted[r.pod.UID] || d.unavailable(r.pod) {
			budget--
		}
	}
	first := partition(d.Set)
	for i := len(d.replicas) - 1; i >= first; i-- {
		r := &d.replicas[i]
		if r.pod == nil || d.deleted[r.pod.UID] {
			continue
		}
		if d.replacesBroken(r) {
			d.deleteForUpdate(r)
		} else if d.outdated(r) && budget > 0 {
			d.deleteForUpdate(r)
			budget--
		}
	}
}

// outdated reports whether the pod of a replica has to be replaced by a rolling update.
func (d *decision) outdated(r *replica) bool {
	return r.pod.DeletionTimestamp == nil && podRevision(r.pod) != d.update.Name
}

// replacesBroken reports whether the pod is unavailable, has to be replaced anyway, and does not have to wait for
// others: in a parallel set, or if the user allows this.
func (d *decision) replacesBroken(r *replica) bool {
	return (!d.ordered() || d.Set.Annotations[AnnotationReplaceBrokenPods] == "true") &&
		d.Set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType &&
		r.ordinal-start(d.Set) >= partition(d.Set) && d.outdated(r) && d.unavailable(r.pod)
}

func (d *decision) deleteForUpdate(r *replica) {
	if podRevision(r.pod) == d.current.Name {
		d.updated++
	}
	d.delete(r.pod)
}

func (d *decision) delete(pod *corev1.Pod) {
	d.deleted[pod.UID] = true
	d.write(workloads.Delete, pod)
}
