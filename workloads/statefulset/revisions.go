package statefulset

import (
	"bytes"
	"cmp"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"

	"berth/podspec"
	"berth/workloads"
)

// hashLabel holds the hash of a ControllerRevision of a StatefulSet.
const hashLabel = "controller.kubernetes.io/hash"

// maxNamePrefix keeps the name of a revision within the length of a DNS subdomain.
const maxNamePrefix = 223

// chooseRevisions sets the current and the update revision, and the collision count of the status. It returns all
// revisions of the set, and plans the new one, or the new number of one that a rollback returns to.
func (d *decision) chooseRevisions(revisions []*appsv1.ControllerRevision, status *appsv1.StatefulSetStatus) (
	[]*appsv1.ControllerRevision, error) {
	data, err := workloads.RevisionData(&d.Set.Spec.Template)
	if err != nil {
		return nil, err
	}
	collisions := new(int32)
	if status.CollisionCount != nil {
		*collisions = *status.CollisionCount
	}
	next := workloads.NextRevision(revisions)
	for i, r := range slices.Backward(revisions) {
		if !workloads.EqualRevision(r, data, &d.Set.Spec.Template, podspec.SetTemplateDefaults) {
			continue
		}
		if i == len(revisions)-1 {
			next = r.Revision
		}
		renumbered, writes := workloads.Renumber(r, next)
		d.update, revisions[i] = renumbered, renumbered
		d.writes = append(d.writes, writes...)
		break
	}
	if d.update == nil {
		d.update = d.newRevision(data, next, collisions)
		revisions = append(revisions, d.update)
	}
	status.CollisionCount = collisions
	d.current = d.update
	for _, r := range revisions {
		if r.Name == d.Set.Status.CurrentRevision {
			d.current = r
		}
	}
	return revisions, nil
}

// newRevision plans a revision. Its name contains a hash of the data and of the number of collisions, which is
// increased while the name is that of a revision with other data.
func (d *decision) newRevision(data []byte, number int64, collisions *int32) *appsv1.ControllerRevision {
	set := d.Set
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{workloads.ControllerRef(set, Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
	maps.Copy(r.Labels, set.Spec.Template.Labels)
	maps.Copy(r.Annotations, set.Annotations)
	r.Labels[hashLabel] = hash(data, *collisions)
	for {
		r.Name = set.Name[:min(len(set.Name), maxNamePrefix)] + "-" + hash(data, *collisions)
		i := slices.IndexFunc(d.Revisions, func(other *appsv1.ControllerRevision) bool { return other.Name == r.Name })
		if i < 0 {
			d.writes = append(d.writes, workloads.Write{Verb: workloads.Create, Object: r})
			return r
		}
		if bytes.Equal(d.Revisions[i].Data.Raw, data) {
			return d.Revisions[i]
		}
		*collisions++
	}
}

// hash is upstream's hash of the data of a revision.
func hash(data []byte, collisions int32) string {
	h := fnv.New32()
	_, _ = h.Write(data)                                             // never fails
	_, _ = h.Write([]byte(strconv.FormatInt(int64(collisions), 10))) // never fails
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// sortPods divides the members of the set into those of desired ordinals and the others.
func (d *decision) sortPods(pods []*corev1.Pod) error {
	current := &d.Set.Spec.Template
	if d.current.Name != d.update.Name {
		var err error
		if current, err = workloads.RevisionTemplate(d.current); err != nil {
			return err
		}
	}
	first := start(d.Set)
	for i := range int(replicas(d.Set)) {
		r := replica{ordinal: first + i, revision: d.update.Name, template: &d.Set.Spec.Template}
		if d.keepsCurrent(i) {
			r.revision, r.template = d.current.Name, current
		}
		d.replicas = append(d.replicas, r)
	}
	for _, p := range pods {
		n := ordinal(d.Set, p)
		if i := n - first; i >= 0 && i < len(d.replicas) {
			d.replicas[i].pod = p
		} else {
			d.excess = append(d.excess, replica{ordinal: n, pod: p})
		}
	}
	slices.SortFunc(d.excess, func(a, b replica) int { return cmp.Compare(b.ordinal, a.ordinal) })
	return nil
}

// keepsCurrent reports whether the replica with the index is created with the current revision, because a rolling
// update does not reach it, or not yet.
func (d *decision) keepsCurrent(index int) bool {
	switch u := d.Set.Spec.UpdateStrategy; {
	case u.Type != appsv1.RollingUpdateStatefulSetStrategyType:
		return false
	case u.RollingUpdate == nil:
		return index < int(d.Set.Status.CurrentReplicas)
	default:
		return index < partition(d.Set)
	}
}

// partition returns the index of the first replica that a rolling update replaces.
func partition(set *appsv1.StatefulSet) int {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition)
	}
	return 0
}

// maxUnavailable returns how many pods may be unavailable during a rolling update: at least 1, a percentage rounded
// down.
func (d *decision) maxUnavailable() int { return MaxUnavailable(d.Set) }

// MaxUnavailable returns how many pods of a set a rolling update may make unavailable.
func MaxUnavailable(set *appsv1.StatefulSet) int {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, int(replicas(set)), false)
		if err == nil && n > 1 {
			return n
		}
	}
	return 1
}

// truncate executes step 5.
func (d *decision) truncate(revisions []*appsv1.ControllerRevision, pods []*corev1.Pod) {
	limit := -1
	if l := d.Set.Spec.RevisionHistoryLimit; l != nil {
		limit = int(*l)
	}
	d.writes = append(d.writes, workloads.TruncateRevisions(revisions, limit, func(r *appsv1.ControllerRevision) bool {
		return r.Name == d.current.Name || r.Name == d.update.Name ||
			slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return podRevision(p) == r.Name })
	})...)
}
