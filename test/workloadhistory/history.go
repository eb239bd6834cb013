package workloadhistory

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Object is an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// Change is one change of an object in the store.
type Change struct {
	Revision int64 // of the store
	Key      string
	Object   Object // nil: removed
}

// History is the state of workloads after a number of changes. The zero value has none.
type History struct {
	// Violations are the violated invariants, in the order of the changes.
	Violations []string
	// Changes, Pods and Jobs count changes, created pods and finished Jobs.
	Changes, Pods, Jobs int

	revision int64
	objects  map[string]Object
	uids     map[types.UID]Object
	children map[types.UID]map[types.UID]Object // by the UID of the controller
	pods     map[types.UID]*podRecord
	sets     map[types.UID]*setRecord
	jobs     map[types.UID]*jobRecord
}

// podRecord is what has happened to a pod.
type podRecord struct {
	// known is the revision at which the owner's status has counted the pod as available. 0: not yet.
	known int64
}

// setRecord is what has happened to a ReplicaSet.
type setRecord struct {
	most      int32 // the most replicas it was scaled to
	decreased int64 // revision of the last decrease of replicas
}

// Apply applies a change and checks the invariants. Changes must be applied in the order of their revisions.
func (h *History) Apply(c Change) {
	if h.objects == nil {
		h.objects, h.uids = map[string]Object{}, map[types.UID]Object{}
		h.children = map[types.UID]map[types.UID]Object{}
		h.pods, h.sets = map[types.UID]*podRecord{}, map[types.UID]*setRecord{}
		h.jobs = map[types.UID]*jobRecord{}
	}
	h.revision = c.Revision
	before := h.objects[c.Key]
	if before == nil && c.Object == nil {
		return // of a type that is not followed
	}
	h.Changes++
	h.store(c.Key, before, c.Object)
	if before != nil && c.Object != nil && before.GetUID() != c.Object.GetUID() {
		h.violated("replaced", "%s: the UID changed", c.Key)
		return
	}
	switch typeOf(before, c.Object).(type) {
	case *corev1.Pod:
		h.checkPod(as[*corev1.Pod](before), as[*corev1.Pod](c.Object))
	case *appsv1.ReplicaSet:
		h.checkReplicaSet(as[*appsv1.ReplicaSet](before), as[*appsv1.ReplicaSet](c.Object))
	case *appsv1.ControllerRevision:
		h.checkControllerRevision(as[*appsv1.ControllerRevision](before), as[*appsv1.ControllerRevision](c.Object))
	case *appsv1.Deployment:
		if d := as[*appsv1.Deployment](c.Object); d != nil {
			h.notePods(h.deploymentPods(d), int(d.Status.AvailableReplicas))
		}
	case *appsv1.DaemonSet:
		if d := as[*appsv1.DaemonSet](c.Object); d != nil {
			h.notePods(h.podsOf(d.UID), int(d.Status.NumberAvailable))
		}
	case *batchv1.Job:
		h.checkJob(as[*batchv1.Job](before), as[*batchv1.Job](c.Object))
	}
}

// typeOf returns the object that is not nil.
func typeOf(before, after Object) Object {
	if after != nil {
		return after
	}
	return before
}

// as returns the object as its type, or nil.
func as[T Object](o Object) (out T) {
	out, _ = o.(T) // a nil interface has no type
	return out
}

func (h *History) store(key string, before, after Object) {
	if before != nil {
		delete(h.objects, key)
		delete(h.uids, before.GetUID())
		if ref := metav1.GetControllerOfNoCopy(before); ref != nil {
			delete(h.children[ref.UID], before.GetUID())
		}
	}
	if after == nil {
		return
	}
	h.objects[key], h.uids[after.GetUID()] = after, after
	if ref := metav1.GetControllerOfNoCopy(after); ref != nil {
		if h.children[ref.UID] == nil {
			h.children[ref.UID] = map[types.UID]Object{}
		}
		h.children[ref.UID][after.GetUID()] = after
	}
}

func (h *History) violated(invariant, format string, args ...any) {
	h.Violations = append(h.Violations, fmt.Sprintf("%s at revision %d: ", invariant, h.revision)+
		fmt.Sprintf(format, args...))
}

// childrenOf returns the objects of a type that the owner controls.
func childrenOf[T Object](h *History, owner types.UID) (out []T) {
	for _, o := range h.children[owner] {
		if child, is := o.(T); is {
			out = append(out, child)
		}
	}
	return out
}

func (h *History) podsOf(owner types.UID) []*corev1.Pod { return childrenOf[*corev1.Pod](h, owner) }

// notePods records that the status of an owner counts all its available pods, if it does.
func (h *History) notePods(pods []*corev1.Pod, available int) {
	if count(pods, ready) != available {
		return
	}
	for _, p := range pods {
		if r := h.pods[p.UID]; r != nil && ready(p) && r.known == 0 {
			r.known = h.revision
		}
	}
}

// active reports whether a pod counts as a replica.
func active(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && !terminated(p) }

func terminated(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ready reports whether a pod is ready and not deleted.
func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return p.DeletionTimestamp == nil
		}
	}
	return false
}

func count(pods []*corev1.Pod, is func(*corev1.Pod) bool) (n int) {
	for _, p := range pods {
		if is(p) {
			n++
		}
	}
	return n
}
