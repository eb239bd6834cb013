package daemonset

import (
	appsv1 "k8s.io/api/apps/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"berth/workloads"
)

// status returns the status to write, or nil if the observed one is right or the newest revision may not exist.
func (d *decision) status() *appsv1.DaemonSetStatus {
	if d.WriteError != nil {
		w := d.WriteError.Write
		if _, ok := w.Object.(*appsv1.ControllerRevision); ok && w.Verb != workloads.Delete {
			return nil
		}
	}
	status := d.Set.Status.DeepCopy()
	*status = appsv1.DaemonSetStatus{ObservedGeneration: d.Set.Generation, CollisionCount: status.CollisionCount,
		Conditions: status.Conditions}
	for _, p := range d.places {
		if !p.run {
			if len(p.pods) > 0 && p.node {
				status.NumberMisscheduled++
			}
			continue
		}
		status.DesiredNumberScheduled++
		if len(p.pods) > 0 {
			d.count(status, p)
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	if apiequality.Semantic.DeepEqual(*status, d.Set.Status) {
		return nil
	}
	return status
}

// count counts the first pod of a node that should run one.
func (d *decision) count(status *appsv1.DaemonSetStatus, p *place) {
	pod := p.pods[0]
	status.CurrentNumberScheduled++
	if workloads.ReadySince(pod) != nil {
		status.NumberReady++
	}
	if d.available(pod) {
		status.NumberAvailable++
	}
	if d.isUpdated(pod) {
		status.UpdatedNumberScheduled++
	}
}
