package statefulset

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"berth/workloads"
)

// status returns the status to write, or nil if the observed one is right.
func (d *decision) status(pods []*corev1.Pod, observed *appsv1.StatefulSetStatus) *appsv1.StatefulSetStatus {
	if d.WriteError != nil {
		w := d.WriteError.Write
		if _, ok := w.Object.(*appsv1.ControllerRevision); ok && w.Verb != workloads.Delete {
			return nil // the revisions of the status may not exist
		}
		d.updated = 0
	}
	status := &appsv1.StatefulSetStatus{ObservedGeneration: d.Set.Generation, CurrentRevision: d.current.Name,
		UpdateRevision: d.update.Name, CollisionCount: observed.CollisionCount, Conditions: observed.Conditions}
	for _, p := range pods {
		d.count(status, p)
	}
	status.CurrentReplicas -= d.updated
	if n := replicas(d.Set); status.UpdatedReplicas == n && status.ReadyReplicas == n && status.Replicas == n {
		status.CurrentReplicas, status.CurrentRevision = status.UpdatedReplicas, status.UpdateRevision
	}
	if apiequality.Semantic.DeepEqual(*status, d.Set.Status) {
		return nil
	}
	return status
}

func (d *decision) count(status *appsv1.StatefulSetStatus, p *corev1.Pod) {
	if p.Status.Phase == "" {
		return
	}
	status.Replicas++
	if p.Status.Phase == corev1.PodRunning && workloads.ReadySince(p) != nil {
		status.ReadyReplicas++
		if d.available(p) {
			status.AvailableReplicas++
		}
	}
	if p.DeletionTimestamp != nil {
		return
	}
	if podRevision(p) == d.current.Name {
		status.CurrentReplicas++
	}
	if podRevision(p) == d.update.Name {
		status.UpdatedReplicas++
	}
}
