package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"berth/control/scheduler/placement"
)

// siblingInformers are the informers that siblings reads.
func (s *Scheduler) siblingInformers() []cache.SharedIndexInformer {
	core, apps := s.Informers.Core().V1(), s.Informers.Apps().V1()
	return []cache.SharedIndexInformer{
		core.Services().Informer(), core.ReplicationControllers().Informer(), apps.ReplicaSets().Informer(),
		apps.StatefulSets().Informer(),
	}
}

// siblings returns the selector of the pods that a pod is spread with by default, or nil.
func (s *Scheduler) siblings(pod *corev1.Pod) labels.Selector {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		return nil // only its own constraints count
	}
	services, err := s.Informers.Core().V1().Services().Lister().Services(pod.Namespace).List(labels.Everything())
	if err != nil {
		services = nil // the lister reads from memory and does not fail
	}
	return placement.Siblings(pod, services, s.controllerSelector(pod))
}

// controllerSelector returns the selector of the controller of a pod, or nil.
func (s *Scheduler) controllerSelector(pod *corev1.Pod) *metav1.LabelSelector {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return nil
	}
	core, apps := s.Informers.Core().V1(), s.Informers.Apps().V1()
	switch schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind) {
	case schema.GroupVersionKind{Version: "v1", Kind: "ReplicationController"}:
		if rc, err := core.ReplicationControllers().Lister().ReplicationControllers(pod.Namespace).
			Get(owner.Name); err == nil {
			return &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}
		}
	case schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}:
		if set, err := apps.ReplicaSets().Lister().ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			return set.Spec.Selector
		}
	case schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}:
		if set, err := apps.StatefulSets().Lister().StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			return set.Spec.Selector
		}
	}
	return nil
}
