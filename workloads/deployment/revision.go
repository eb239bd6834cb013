package deployment

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"berth/workloads"
)

// The annotations of Deployments and their ReplicaSets.
const (
	RevisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredReplicasAnnotation = "deployment.kubernetes.io/desired-replicas"
	maxReplicasAnnotation     = "deployment.kubernetes.io/max-replicas"
)

// maxRevisionHistory is the maximum length of revisionHistoryAnnotation. The oldest revisions are dropped.
const maxRevisionHistory = 2000

// copied reports whether an annotation of the Deployment is copied to its new ReplicaSet.
func copied(key string) bool {
	switch key {
	case corev1.LastAppliedConfigAnnotation, RevisionAnnotation, revisionHistoryAnnotation,
		desiredReplicasAnnotation, maxReplicasAnnotation, appsv1.DeprecatedRollbackTo:
		return false
	}
	return true
}

// sameTemplate compares two templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(a.Labels), withoutHash(b.Labels)) &&
		equality.Semantic.DeepEqual(metadataWithoutLabels(a), metadataWithoutLabels(b)) &&
		equality.Semantic.DeepEqual(&a.Spec, &b.Spec)
}

func withoutHash(labels map[string]string) map[string]string {
	if _, found := labels[appsv1.DefaultDeploymentUniqueLabelKey]; !found {
		return labels
	}
	out := maps.Clone(labels)
	delete(out, appsv1.DefaultDeploymentUniqueLabelKey)
	return out
}

func metadataWithoutLabels(t *corev1.PodTemplateSpec) metav1.ObjectMeta {
	out := t.ObjectMeta
	out.Labels = nil
	return out
}

// revisionOf returns the revision of a ReplicaSet, or 0 if it has none that is a number.
func revisionOf(rs *replicaSet) int64 {
	n, err := strconv.ParseInt(rs.Annotations[RevisionAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// nextRevision returns the revision that is higher than those of all old ReplicaSets.
func (r *rollout) nextRevision() int64 {
	highest := int64(0)
	for _, rs := range r.old {
		highest = max(highest, revisionOf(rs))
	}
	return highest + 1
}

// syncNewReplicaSet brings annotations and minReadySeconds of the existing new ReplicaSet up to date.
func (r *rollout) syncNewReplicaSet() {
	rs := r.newSet
	if text := rs.Annotations[RevisionAnnotation]; text == "" || revisionOf(rs) != 0 {
		rs.setRevision(r.d, r.nextRevision())
	}
	if rs.Spec.MinReadySeconds != r.d.Spec.MinReadySeconds {
		rs.Spec.MinReadySeconds = r.d.Spec.MinReadySeconds
		rs.changed = true
	}
	r.revision = rs.Annotations[RevisionAnnotation]
	if hasProgressDeadline(r.d) && findCondition(r.conditions, appsv1.DeploymentProgressing) == nil {
		r.setProgressing(corev1.ConditionTrue, reasonFound,
			fmt.Sprintf("Found new replica set %q", rs.Name))
	}
}

// setRevision copies the annotations of the Deployment and raises the revision to at least revision. The revision
// that the ReplicaSet had before is kept in its history.
func (rs *replicaSet) setRevision(d *appsv1.Deployment, revision int64) {
	for _, key := range slices.Sorted(maps.Keys(d.Annotations)) {
		if copied(key) {
			rs.annotate(key, d.Annotations[key])
		}
	}
	before := revisionOf(rs)
	if before >= revision {
		return
	}
	if text, had := rs.Annotations[RevisionAnnotation]; had {
		rs.annotate(revisionHistoryAnnotation, appendRevision(rs.Annotations[revisionHistoryAnnotation], text))
	}
	rs.annotate(RevisionAnnotation, strconv.FormatInt(revision, 10))
}

// appendRevision appends a revision to a history and drops the oldest ones if it becomes too long.
func appendRevision(history, revision string) string {
	if history == "" {
		return revision
	}
	for history != "" && len(history)+len(revision)+1 > maxRevisionHistory {
		_, history, _ = strings.Cut(history, ",")
	}
	if history == "" {
		return revision
	}
	return history + "," + revision
}

// annotate sets an annotation and reports whether that changed it.
func (rs *replicaSet) annotate(key, value string) bool {
	if old, found := rs.Annotations[key]; found && old == value {
		return false
	}
	if !rs.ownAnnotations {
		own := map[string]string{}
		maps.Copy(own, rs.Annotations)
		rs.Annotations, rs.ownAnnotations = own, true
	}
	rs.Annotations[key] = value
	rs.changed = true
	return true
}

// annotateReplicas records for which number of replicas the ReplicaSet is sized. It reports whether that changed.
func (r *rollout) annotateReplicas(rs *replicaSet) bool {
	desired := rs.annotate(desiredReplicasAnnotation, strconv.Itoa(int(r.replicas)))
	return rs.annotate(maxReplicasAnnotation, strconv.Itoa(int(r.replicas+maxSurge(r.d)))) || desired
}

// ensureNewReplicaSet creates the new ReplicaSet if there is none. It returns false if its name is taken: then the
// rollout goes on with the next collision count.
func (r *rollout) ensureNewReplicaSet() bool {
	if r.newSet != nil {
		return true
	}
	rs := r.newReplicaSet()
	if nameTaken(r.in, rs.Name) {
		r.collisionCount = incremented(r.collisionCount)
		return false
	}
	r.newSet = rs
	rs.Spec.Replicas = new(int32)
	*rs.Spec.Replicas = r.newSetSize()
	rs.setRevision(r.d, r.nextRevision())
	r.annotateReplicas(rs)
	r.revision = rs.Annotations[RevisionAnnotation]
	if hasProgressDeadline(r.d) {
		r.setProgressing(corev1.ConditionTrue, reasonCreated,
			fmt.Sprintf("Created new replica set %q", rs.Name))
	}
	return true
}

// newReplicaSet returns the ReplicaSet of the template, without replicas.
func (r *rollout) newReplicaSet() *replicaSet {
	template := *r.d.Spec.Template.DeepCopy()
	hash := workloads.Hash(template, r.collisionCount)
	template.Labels = withLabel(template.Labels, hash)
	selector := r.d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withLabel(selector.MatchLabels, hash)
	return &replicaSet{ReplicaSet: appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.d.Namespace, Name: replicaSetName(r.d.Name, hash), Labels: maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{workloads.ControllerRef(r.d, Kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32), MinReadySeconds: r.d.Spec.MinReadySeconds, Selector: selector, Template: template,
		},
	}}
}

func withLabel(labels map[string]string, hash string) map[string]string {
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	out[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return out
}

// replicaSetName returns the name of a ReplicaSet. A long name of the Deployment is cut.
func replicaSetName(deployment, hash string) string {
	limit := validation.DNS1123SubdomainMaxLength - len("-") - len(hash)
	return deployment[:min(len(deployment), limit)] + "-" + hash
}
