package workloads

import (
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
)

// Active reports whether a pod counts as a replica: it is neither terminating nor terminated.
func Active(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil && !Terminated(pod) }

// Terminated reports whether a pod has succeeded or failed.
func Terminated(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// ReadySince returns since when a pod is ready, or nil if it is not.
func ReadySince(pod *corev1.Pod) *metav1.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return &c.LastTransitionTime
		}
	}
	return nil
}

// Available reports whether a pod has been ready for minReadySeconds. If it only has to stay
// ready, at is the time at which it becomes available.
func Available(pod *corev1.Pod, minReadySeconds int32, now time.Time) (available bool, at time.Time) {
	since := ReadySince(pod)
	switch {
	case since == nil:
		return false, time.Time{}
	case minReadySeconds == 0:
		return true, time.Time{}
	case since.IsZero():
		return false, time.Time{}
	}
	at = since.Add(time.Duration(minReadySeconds) * time.Second)
	if !now.Before(at) {
		return true, time.Time{}
	}
	return false, at
}

// PhaseRank orders pods by their progress: 0 for Pending and for a terminated pod, then Unknown, then Running.
func PhaseRank(pod *corev1.Pod) int {
	switch pod.Status.Phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// Restarts returns the most restarts of a container, and those of a sidecar container.
func Restarts(pod *corev1.Pod) []int32 {
	sidecars := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		sidecars[c.Name] = c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	out := make([]int32, 2)
	for i := range pod.Status.ContainerStatuses {
		out[0] = max(out[0], pod.Status.ContainerStatuses[i].RestartCount)
	}
	for i := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[i]; sidecars[s.Name] {
			out[1] = max(out[1], s.RestartCount)
		}
	}
	return out
}

// Earlier returns the earlier of two times, of which a zero one does not count.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Hash returns the hash of a value as upstream's controllers compute it for the pod-template-hash and
// controller-revision-hash labels, so that objects keep their names when another control plane takes over.
func Hash(value any, collisionCount *int32) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dump.ForHash(value))) // never fails
	if collisionCount != nil {
		b := make([]byte, 8)
		b[0], b[1], b[2], b[3] = byte(*collisionCount), byte(*collisionCount>>8), byte(*collisionCount>>16),
			byte(*collisionCount>>24)
		_, _ = h.Write(b)
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Claim divides objects into those that the owner controls and keeps, and writes: adoptions of matching objects
// without a controller, which are in owned too, and releases of those that no longer match. An owner that is
// being deleted neither adopts nor releases.
func Claim[T Object](owner Object, kind metav1.TypeMeta, selector labels.Selector, objects []T) (owned []T,
	writes []Write) {
	for _, o := range objects {
		ref := metav1.GetControllerOfNoCopy(o)
		matches := selector.Matches(labels.Set(o.GetLabels()))
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches:
			owned = append(owned, o)
		case owner.GetDeletionTimestamp() != nil || o.GetDeletionTimestamp() != nil:
		case ref != nil:
			writes = append(writes, Write{Verb: Patch, Base: o, Object: withoutOwner(o, owner)})
		case matches:
			adopted := withOwner(o, owner, kind)
			owned = append(owned, adopted)
			writes = append(writes, Write{Verb: Patch, Base: o, Object: adopted, VerifyOwner: true})
		}
	}
	return owned, writes
}

// ControllerRef returns the owner reference of a child.
func ControllerRef(owner metav1.Object, kind metav1.TypeMeta) metav1.OwnerReference {
	return *metav1.NewControllerRef(owner, kind.GroupVersionKind())
}

func withOwner[T Object](o T, owner Object, kind metav1.TypeMeta) T {
	out, _ := o.DeepCopyObject().(T) // DeepCopyObject returns the type of its receiver
	out.SetOwnerReferences(append(out.GetOwnerReferences(), ControllerRef(owner, kind)))
	return out
}

func withoutOwner[T Object](o T, owner Object) T {
	out, _ := o.DeepCopyObject().(T)
	out.SetOwnerReferences(slices.DeleteFunc(out.GetOwnerReferences(), func(ref metav1.OwnerReference) bool {
		return ref.UID == owner.GetUID()
	}))
	return out
}
