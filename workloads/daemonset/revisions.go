package daemonset

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/podspec"
	"berth/workloads"
)

// chooseRevision sets the hash of the template's revision and returns the other revisions. It plans the new revision,
// the new number of one that a rollback returns to, and the deletion of duplicates, whose pods get the label of the
// kept one. If the name of the new revision is that of one with other data, it reports a collision and plans nothing.
func (d *decision) chooseRevision(revisions []*appsv1.ControllerRevision, pods []*corev1.Pod) (
	old []*appsv1.ControllerRevision, collided bool, err error) {
	data, err := workloads.RevisionData(&d.Set.Spec.Template)
	if err != nil {
		return nil, false, err
	}
	var current []*appsv1.ControllerRevision
	// If a revision has exactly the data, the meaning of other data matters only if pods have that revision: without it
	// they would be replaced. Old revisions of a finished rollout are not decoded at each sync.
	same := func(r *appsv1.ControllerRevision) bool { return bytes.Equal(r.Data.Raw, data) }
	exact, live := slices.ContainsFunc(revisions, same), liveHashes(pods)
	for _, r := range revisions {
		if same(r) || (!exact || live[revisionHash(r)]) &&
			workloads.EqualRevision(r, data, &d.Set.Spec.Template, podspec.SetTemplateDefaults) {
			current = append(current, r)
		} else {
			old = append(old, r)
		}
	}
	number := workloads.NextRevision(old)
	if len(current) == 0 {
		return old, d.newRevision(data, number), nil
	}
	kept := current[len(current)-1]
	d.hash = revisionHash(kept)
	for _, duplicate := range current[:len(current)-1] {
		d.relabel(pods, revisionHash(duplicate))
		d.writes = append(d.writes, workloads.Write{Verb: workloads.Delete, Object: duplicate})
	}
	if kept.Revision < number {
		_, writes := workloads.Renumber(kept, number)
		d.writes = append(d.writes, writes...)
	}
	return old, false, nil
}

// revisionHash returns the value of the pod label of a revision. Very old revisions do not have the label.
func revisionHash(r *appsv1.ControllerRevision) string {
	return cmp.Or(r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey], r.Name)
}

// liveHashes returns the revision hashes of pods.
func liveHashes(pods []*corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, pod := range pods {
		out[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	return out
}

// relabel gives the pods of a duplicate revision the hash of the kept one. The rest of the decision sees it, so that it
// does not replace them.
func (d *decision) relabel(pods []*corev1.Pod, hash string) {
	for _, pod := range pods {
		if pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == hash && hash != d.hash {
			changed := pod.DeepCopy()
			changed.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = d.hash
			d.writes = append(d.writes, workloads.Write{Verb: workloads.Patch, Base: pod, Object: changed})
			for _, p := range d.places {
				if i := slices.Index(p.pods, pod); i >= 0 {
					p.pods[i] = changed
				}
			}
		}
	}
}

func (d *decision) newRevision(data []byte, number int64) (collided bool) {
	set := d.Set
	d.hash = workloads.Hash(set.Spec.Template, set.Status.CollisionCount)
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: set.Name + "-" + d.hash, Labels: map[string]string{},
			Annotations:     maps.Clone(set.Annotations),
			OwnerReferences: []metav1.OwnerReference{workloads.ControllerRef(set, Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
	maps.Copy(r.Labels, set.Spec.Template.Labels)
	r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = d.hash
	i := slices.IndexFunc(d.Revisions, func(other *appsv1.ControllerRevision) bool { return other.Name == r.Name })
	if i < 0 {
		d.writes = append(d.writes, workloads.Write{Verb: workloads.Create, Object: r})
		return false
	}
	return !bytes.Equal(d.Revisions[i].Data.Raw, data)
}

// truncate executes step 4. Revisions of pods count, but are not deleted.
func (d *decision) truncate(old []*appsv1.ControllerRevision, pods []*corev1.Pod) {
	if d.Set.Spec.RevisionHistoryLimit == nil {
		return
	}
	hashes := liveHashes(pods)
	live := func(r *appsv1.ControllerRevision) bool { return hashes[revisionHash(r)] }
	kept := 0
	for _, r := range old {
		if live(r) {
			kept++
		}
	}
	limit := max(0, int(*d.Set.Spec.RevisionHistoryLimit)-kept)
	d.writes = append(d.writes, workloads.TruncateRevisions(old, limit, live)...)
}
