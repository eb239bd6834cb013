package agent

import (
	"maps"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/podspec"
)

// Desired is what a source wants of one pod. The newest replaces the older.
type Desired struct {
	Pod         *corev1.Pod // shared, read-only
	Termination *plan.End   // nil: run
}

// objects holds the ConfigMaps and Secrets of all sources. The map is replaced,
// never changed: any goroutine may read it.
type objects struct {
	now      atomic.Pointer[map[source.ObjectKey]plan.Object]
	bySource map[string]map[source.ObjectKey]plan.Object // the agent's goroutine only
}

// replace takes what one source has now and reports whether anything changed.
func (o *objects) replace(snap *source.Snapshot) bool {
	same := maps.EqualFunc(o.bySource[snap.Source], snap.Objects, func(a, b plan.Object) bool { return a.Version == b.Version })
	if same {
		return false
	}
	o.bySource[snap.Source] = snap.Objects
	all := make(map[source.ObjectKey]plan.Object, len(snap.Objects))
	for _, objs := range o.bySource {
		maps.Copy(all, objs)
	}
	o.now.Store(&all)
	return true
}

// Of returns the objects that a pod names, taken at one moment.
func (o *objects) Of(pod *corev1.Pod) plan.Objects {
	out := plan.Objects{}
	all := o.now.Load()
	for _, r := range podspec.References(pod) {
		ref := plan.Ref{Kind: plan.RefKind(r.Kind), Name: r.Name}
		out[ref] = plan.Object{Version: plan.Version{Missing: true}}
		if all == nil {
			continue
		}
		if obj, ok := (*all)[source.KeyOf(pod, ref)]; ok {
			out[ref] = obj
		}
	}
	return out
}

// kept is what of a pod's objects has to survive a reboot with no server in reach.
// Those of files are in the files.
func (o *objects) kept(pod *corev1.Pod) plan.Objects {
	if !podspec.FromAPIServer(pod) {
		return nil
	}
	return o.Of(pod)
}

// ReferencedObjects is what a pod would find of the objects that it names, with some of
// them taken from elsewhere.
func (a *Agent) ReferencedObjects(pod *corev1.Pod, more map[source.ObjectKey]plan.Object) plan.Objects {
	out := a.desired.objects.Of(pod)
	for ref := range out {
		if obj, ok := more[source.KeyOf(pod, ref)]; ok {
			out[ref] = obj
		}
	}
	return out
}

// ObjectVersions is what Decide may know of objects.
func ObjectVersions(objs plan.Objects) map[plan.Ref]plan.Version {
	out := make(map[plan.Ref]plan.Version, len(objs))
	for r, o := range objs {
		out[r] = o.Version
	}
	return out
}

// desiredPods holds the newest wish per pod from all sources, and serialises pods of
// one name: a successor waits until nothing is left of its predecessor. It
// belongs to the agent's goroutine.
type desiredPods struct {
	wanted    map[types.UID]*corev1.Pod                 // by the sources, now
	from      map[types.UID]string                      // source of a wanted pod
	ready     map[string]bool                           // sources that have told all they know
	queued    map[types.NamespacedName]*corev1.Pod      // waits for its predecessor's end
	ephemeral map[types.UID][]corev1.EphemeralContainer // put into a running pod, beside those of its source
	objects   *objects
}

func newDesiredPods() *desiredPods {
	return &desiredPods{
		ephemeral: map[types.UID][]corev1.EphemeralContainer{},
		wanted:    map[types.UID]*corev1.Pod{}, from: map[types.UID]string{}, ready: map[string]bool{},
		queued: map[types.NamespacedName]*corev1.Pod{}, objects: &objects{bySource: map[string]map[source.ObjectKey]plan.Object{}},
	}
}

// restoreEphemeralContainers takes in what was put into pods in the agent's last life.
func (s *desiredPods) restoreEphemeralContainers(records map[types.UID]checkpoint.Record) {
	for uid, rec := range records {
		if rec.Pod != nil && len(rec.Pod.Spec.EphemeralContainers) > 0 {
			s.ephemeral[uid] = rec.Pod.Spec.EphemeralContainers // those of the source too: they are told apart by name
		}
	}
}

// dequeue drops a pod that waits for its predecessor's end.
func (s *desiredPods) dequeue(uid types.UID) {
	maps.DeleteFunc(s.queued, func(_ types.NamespacedName, pod *corev1.Pod) bool { return pod.UID == uid })
}

func (s *desiredPods) isQueued(uid types.UID) bool {
	for _, pod := range s.queued {
		if pod.UID == uid {
			return true
		}
	}
	return false
}

// next returns the pod that takes over a name that has become free, after the
// pod with that UID; nil: none. That may be the same pod, wanted again while it
// was ending.
func (s *desiredPods) next(name types.NamespacedName, after types.UID) *corev1.Pod {
	if pod, queued := s.queued[name]; queued {
		delete(s.queued, name)
		return pod
	}
	if pod := s.wanted[after]; pod != nil && pod.DeletionTimestamp == nil {
		return pod
	}
	return nil // or its object is about to go
}

// change is what a newer snapshot of a source means for the workers.
type change struct {
	run  []*corev1.Pod // new or changed
	gone []types.UID   // no longer wanted
}

// apply replaces what one source wants. Pods are equal if their pointers or
// their config hashes are.
func (s *desiredPods) apply(snap *source.Snapshot) change {
	var c change
	now := make(map[types.UID]bool, len(snap.Pods))
	for _, pod := range snap.Pods {
		pod = s.withEphemeralContainers(pod)
		now[pod.UID] = true
		was, known := s.wanted[pod.UID]
		s.wanted[pod.UID], s.from[pod.UID] = pod, snap.Source
		if !known || !source.SameRevision(was, pod) {
			c.run = append(c.run, pod)
		}
	}
	for uid, from := range s.from {
		if from == snap.Source && !now[uid] {
			delete(s.wanted, uid)
			delete(s.from, uid)
			c.gone = append(c.gone, uid)
		}
	}
	slices.Sort(c.gone)
	s.ready[snap.Source] = s.ready[snap.Source] || snap.Ready
	return c
}

// withEphemeralContainers returns the pod with the ephemeral containers that were put into it.
func (s *desiredPods) withEphemeralContainers(pod *corev1.Pod) *corev1.Pod {
	out := pod
	for _, c := range s.ephemeral[pod.UID] {
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

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// allReady reports whether that many sources have told all they know. Without a
// source nobody can say what is not wanted.
func (s *desiredPods) allReady(sources int) bool {
	n := 0
	for _, ready := range s.ready {
		if ready {
			n++
		}
	}
	return n > 0 && n >= sources
}
