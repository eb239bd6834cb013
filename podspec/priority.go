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
	nodeCriticalPlus    = 1000 // node critical has precedence over cluster critical
	sourceAnnotation    = "kubernetes.io/config.source"
	sourceControlServer = "api"
)

// Priority is the priority of the pod: spec.priority, else that of a system priority class, which
// an API server would have resolved, else 0.
func Priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	priority, _ := systemPriority(pod.Spec.PriorityClassName)
	return priority
}

// HasPriority reports whether the pod has a priority set, instead of the default 0.
func HasPriority(pod *corev1.Pod) bool {
	_, system := systemPriority(pod.Spec.PriorityClassName)
	return pod.Spec.Priority != nil || system
}

// systemPriority is the priority of a system priority class. Only an API server knows other
// classes.
func systemPriority(class string) (priority int32, ok bool) {
	switch class {
	case nodeCritical:
		return criticalPriority + nodeCriticalPlus, true
	case clusterCritical:
		return criticalPriority, true
	}
	return 0, false
}

// IsStatic reports whether the pod does not come from an API server.
func IsStatic(pod *corev1.Pod) bool {
	source, ok := pod.Annotations[sourceAnnotation]
	return ok && source != sourceControlServer
}

// Annotations of berth on static pods: the hash of the manifest, and that hash when berth adopted the pod
// from the kubelet.
const (
	ContentAnnotation = "berth.dev/config.content"
	AdoptedAnnotation = "berth.dev/config.adopted"
)

// IsMirror reports whether the pod is the mirror of a static pod.
func IsMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// IsCritical reports whether a pod is never evicted and may preempt others: a pod with a system
// priority and, on a node that has joined an API server, every static or mirror pod. On a
// standalone node all pods are static. If all were critical, no pod could be evicted.
func IsCritical(pod *corev1.Pod, standalone bool) bool {
	return Priority(pod) >= criticalPriority || !standalone && (IsStatic(pod) || IsMirror(pod))
}

// GracePeriod is the termination grace period: of the deletion, else of the spec, else 30 s. Zero
// means immediately, negative values count as 1 s.
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
