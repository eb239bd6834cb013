package placement

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Siblings returns the selector of the pods that a pod is spread with by default: those that match the selectors of all
// its Services and of its controller. services are those of the pod's namespace. controller is the selector of the
// ReplicaSet, StatefulSet or ReplicationController that controls the pod, or nil. Siblings returns nil if there is no
// selector.
func Siblings(pod *corev1.Pod, services []*corev1.Service, controller *metav1.LabelSelector) labels.Selector {
	set := labels.Set{}
	for _, s := range services {
		if s.Spec.Selector != nil && labels.SelectorFromValidatedSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			maps.Copy(set, s.Spec.Selector)
		}
	}
	out := labels.SelectorFromValidatedSet(set)
	if controller != nil {
		more, err := metav1.LabelSelectorAsSelector(controller)
		if requirements, selectable := more.Requirements(); err == nil && selectable {
			out = out.Add(requirements...)
		}
	}
	if out.Empty() {
		return nil
	}
	return out
}
