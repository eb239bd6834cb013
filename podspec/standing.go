package podspec

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	criticalPriority    = 2_000_000_000
	clusterCritical     = "system-cluster-critical"
	nodeCritical        = "system-node-critical"
	nodeCriticalPlus    = 1000 // node critical stands above cluster critical
	sourceAnnotation    = "kubernetes.io/config.source"
	sourceControlServer = "api"
)

// Priority is the pod's priority: spec.priority; else, since no server has
// resolved it, that of one of the two system classes; else 0.
func Priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	priority, _ := systemPriority(pod.Spec.PriorityClassName)
	return priority
}

// HasPriority reports whether the pod has a priority of its own: it does not only count
// as 0 for want of any.
func HasPriority(pod *corev1.Pod) bool {
	_, system := systemPriority(pod.Spec.PriorityClassName)
	return pod.Spec.Priority != nil || system
}

// systemPriority is the priority of a system class; not ok if it is none: only
// a server knows other classes.
func systemPriority(class string) (priority int32, ok bool) {
	switch class {
	case nodeCritical:
		return criticalPriority + nodeCriticalPlus, true
	case clusterCritical:
		return criticalPriority, true
	}
	return 0, false
}

// IsStatic reports whether the pod came from elsewhere than a control server.
func IsStatic(pod *corev1.Pod) bool {
	source, ok := pod.Annotations[sourceAnnotation]
	return ok && source != sourceControlServer
}

// IsMirror reports whether the pod only shows a static pod to a control server.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// IsCritical reports whether a pod is never evicted and may preempt others: one
// with the priority of the system classes and, on a node that has joined a
// server, every static or mirror pod. On a standalone node all pods are static,
// and if all were critical none could ever make room.
func IsCritical(pod *corev1.Pod, standalone bool) bool {
	return Priority(pod) >= criticalPriority || !standalone && (IsStatic(pod) || IsMirror(pod))
}

// GracePeriod is how long the pod may take to end: what its deletion says, else its
// spec, else 30 s. Zero means at once; negative counts as 1 s.
func GracePeriod(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	if s := pod.DeletionGracePeriodSeconds; s != nil {
		seconds = *s
	}
	if seconds < 0 {
		seconds = 1
	}
	return time.Duration(min(seconds, math.MaxInt64/int64(time.Second))) * time.Second
}
