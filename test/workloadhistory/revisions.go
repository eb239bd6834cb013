package workloadhistory

import (
	"bytes"
	"math"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// revisionAnnotation holds the revision number of a ReplicaSet.
const revisionAnnotation = "deployment.kubernetes.io/revision"

func (h *History) checkReplicaSet(before, after *appsv1.ReplicaSet) {
	if after == nil {
		h.checkRemovedReplicaSet(before)
		delete(h.sets, before.UID)
		return
	}
	record := h.sets[after.UID]
	if record == nil {
		record = &setRecord{}
		h.sets[after.UID] = record
	}
	record.most = max(record.most, int32(replicas(after.Spec.Replicas)))
	if before != nil && replicas(after.Spec.Replicas) < replicas(before.Spec.Replicas) {
		record.decreased = h.revision
	}
	d := h.deploymentOf(after)
	if d == nil {
		return
	}
	total := 0
	for _, other := range childrenOf[*appsv1.ReplicaSet](h, d.UID) {
		total += replicas(other.Spec.Replicas)
		if other.UID == after.UID {
			continue
		}
		if n := after.Annotations[revisionAnnotation]; n != "" && n == other.Annotations[revisionAnnotation] {
			h.violated("R1", "ReplicaSets %s and %s have the revision %s", after.Name, other.Name, n)
		}
		if apiequality.Semantic.DeepEqual(template(after), template(other)) {
			h.violated("R1", "ReplicaSets %s and %s have the same template", after.Name, other.Name)
		}
	}
	increased := before == nil || replicas(after.Spec.Replicas) > replicas(before.Spec.Replicas)
	if most := replicas(d.Spec.Replicas) + surge(d); increased && total > most {
		h.violated("D1", "the ReplicaSets of Deployment %s have %d replicas, at most %d are allowed", d.Name, total,
			most)
	}
}

// template returns the template of a ReplicaSet without the label that its controller adds.
func template(set *appsv1.ReplicaSet) *corev1.PodTemplateSpec {
	out := set.Spec.Template.DeepCopy()
	delete(out.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return out
}

func surge(d *appsv1.Deployment) int {
	if d.Spec.Strategy.RollingUpdate == nil {
		return 0
	}
	return amount(d.Spec.Strategy.RollingUpdate.MaxSurge, d.Spec.Replicas, true)
}

// checkRemovedReplicaSet checks that an old revision of a living Deployment was removed.
func (h *History) checkRemovedReplicaSet(set *appsv1.ReplicaSet) {
	d := h.deploymentOf(set)
	if d == nil || d.DeletionTimestamp != nil {
		return
	}
	if replicas(set.Spec.Replicas) != 0 || count(h.podsOf(set.UID), active) > 0 {
		h.violated("R2", "ReplicaSet %s was removed while it was in use", set.Name)
	}
	old := len(childrenOf[*appsv1.ReplicaSet](h, d.UID)) - 1
	if limit := replicas(d.Spec.RevisionHistoryLimit); old < limit {
		h.violated("R2", "ReplicaSet %s was removed with %d of %d old revisions left", set.Name, old, limit)
	}
}

func (h *History) checkControllerRevision(before, after *appsv1.ControllerRevision) {
	if after == nil {
		h.checkRemovedRevision(before)
		return
	}
	for _, other := range childrenOf[*appsv1.ControllerRevision](h, uidOf(after)) {
		switch {
		case other.UID == after.UID:
		case other.Revision == after.Revision:
			h.violated("R1", "ControllerRevisions %s and %s have the number %d", after.Name, other.Name, after.Revision)
		case bytes.Equal(other.Data.Raw, after.Data.Raw):
			h.violated("R1", "ControllerRevisions %s and %s have the same data", after.Name, other.Name)
		}
	}
}

// checkRemovedRevision checks that an old ControllerRevision of a living owner was removed.
func (h *History) checkRemovedRevision(r *appsv1.ControllerRevision) {
	limit, inUse := math.MinInt, map[string]bool{}
	switch owner := h.uids[uidOf(r)].(type) {
	case *appsv1.StatefulSet:
		if owner.DeletionTimestamp == nil {
			limit = replicas(owner.Spec.RevisionHistoryLimit)
			inUse[owner.Status.CurrentRevision], inUse[owner.Status.UpdateRevision] = true, true
		}
	case *appsv1.DaemonSet:
		if owner.DeletionTimestamp == nil {
			limit = replicas(owner.Spec.RevisionHistoryLimit)
		}
	}
	for _, p := range h.podsOf(uidOf(r)) {
		if active(p) {
			inUse[p.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
		}
	}
	if limit >= 0 && (inUse[r.Name] || inUse[r.Labels[appsv1.ControllerRevisionHashLabelKey]]) {
		h.violated("R2", "ControllerRevision %s was removed while it was in use", r.Name)
	}
	if old := len(childrenOf[*appsv1.ControllerRevision](h, uidOf(r))) - 1; old < limit {
		h.violated("R2", "ControllerRevision %s was removed with %d of %d old revisions left", r.Name, old, limit)
	}
}
