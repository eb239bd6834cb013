package agent

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/source"
	"berth/podspec"
)

// desiredPods holds the newest desired pods of all sources, and serializes pods with
// one name: a successor waits until its predecessor is deleted (A4). It belongs to the
// agent's goroutine.
type desiredPods struct {
	pods      map[types.UID]*corev1.Pod                 // of all sources, now
	source    map[types.UID]string                      // of each of them
	ready     map[string]bool                           // sources that have sent everything they have
	pending   map[string]map[types.UID]bool             // desired pods that a source has not sent yet, by source
	queued    map[types.NamespacedName]*corev1.Pod      // waits until its predecessor is deleted
	ephemeral map[types.UID][]corev1.EphemeralContainer // added to a running pod, in addition to those of its source
	objects   *objects
}

func newDesiredPods() *desiredPods {
	return &desiredPods{
		pods: map[types.UID]*corev1.Pod{}, source: map[types.UID]string{}, ready: map[string]bool{},
		pending: map[string]map[types.UID]bool{}, queued: map[types.NamespacedName]*corev1.Pod{},
		ephemeral: map[types.UID][]corev1.EphemeralContainer{}, objects: newObjects(),
	}
}

// restoreEphemeralContainers restores the ephemeral containers that were added before an
// agent restart.
func (d *desiredPods) restoreEphemeralContainers(records map[types.UID]checkpoint.Record) {
	for uid, rec := range records {
		if rec.Pod != nil && len(rec.Pod.Spec.EphemeralContainers) > 0 {
			// They include those of the source, which withEphemeralContainers skips by name.
			d.ephemeral[uid] = rec.Pod.Spec.EphemeralContainers
		}
	}
}

// dequeue drops a pod that waits for its predecessor.
func (d *desiredPods) dequeue(uid types.UID) {
	maps.DeleteFunc(d.queued, func(_ types.NamespacedName, pod *corev1.Pod) bool { return pod.UID == uid })
}

func (d *desiredPods) isQueued(uid types.UID) bool {
	for _, pod := range d.queued {
		if pod.UID == uid {
			return true
		}
	}
	return false
}

// next returns the pod that may start after the deletion of the pod with that UID and
// name, or nil. It may be the same pod, if it is desired again.
func (d *desiredPods) next(name types.NamespacedName, after types.UID) *corev1.Pod {
	if pod, queued := d.queued[name]; queued {
		delete(d.queued, name)
		return pod
	}
	if pod := d.pods[after]; pod != nil && pod.DeletionTimestamp == nil {
		return pod
	}
	return nil // or its object is being deleted
}

// changes are the changes of a newer snapshot of a source.
type changes struct {
	changed []*corev1.Pod // new or changed
	removed []types.UID
	dropped bool // a pending pod is no longer desired
}

// apply replaces the desired pods of one source. Pods are equal if their pointers or
// their config hashes are.
func (d *desiredPods) apply(snap *source.Snapshot) changes {
	var c changes
	now := make(map[types.UID]bool, len(snap.Pods))
	for _, pod := range snap.Pods {
		pod = d.withEphemeralContainers(pod)
		now[pod.UID] = true
		before, known := d.pods[pod.UID]
		d.pods[pod.UID], d.source[pod.UID] = pod, snap.Source
		if !known || !source.SameRevision(before, pod) {
			c.changed = append(c.changed, pod)
		}
	}
	for uid, from := range d.source {
		if from == snap.Source && !now[uid] {
			delete(d.pods, uid)
			delete(d.source, uid)
			c.removed = append(c.removed, uid)
		}
	}
	slices.Sort(c.removed)
	for uid := range d.pending[snap.Source] {
		c.dropped = c.dropped || !now[uid] && !snap.Pending[uid]
	}
	d.pending[snap.Source] = snap.Pending
	d.ready[snap.Source] = d.ready[snap.Source] || snap.Ready
	return c
}

// withEphemeralContainers returns the pod with the ephemeral containers that were added
// to it.
func (d *desiredPods) withEphemeralContainers(pod *corev1.Pod) *corev1.Pod {
	out := pod
	for _, c := range d.ephemeral[pod.UID] {
		if podspec.FindContainer(pod, c.Name) != nil {
			continue
		}
		if out == pod {
			out = pod.DeepCopy()
		}
		out.Spec.EphemeralContainers = append(out.Spec.EphemeralContainers, c)
	}
	return out
}

// isPending reports whether a source desires a pod that it has not sent yet.
func (d *desiredPods) isPending(uid types.UID) bool {
	pods := slices.Collect(maps.Values(d.pending))
	return slices.ContainsFunc(pods, func(p map[types.UID]bool) bool { return p[uid] })
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// allReady reports whether that many sources have sent everything they have. Without a
// source it is unknown which pods are orphans.
func (d *desiredPods) allReady(sources int) bool {
	n := 0
	for _, ready := range d.ready {
		if ready {
			n++
		}
	}
	return n > 0 && n >= sources
}
