package scheduler

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"berth/control/scheduler/placement"
	"berth/podspec"
)

// podFilters are the filters whose result may change when a pod is removed.
var podFilters = []placement.Filter{
	placement.FilterNodeResourcesFit, placement.FilterNodePorts, placement.FilterPodTopologySpread,
	placement.FilterInterPodAffinity,
}

// eventHandlers returns handlers that post to Run's goroutine. was is nil for a new object.
func eventHandlers[T any](s *Scheduler, onUpdate func(was, is *T), onDelete func(*T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if is, ok := obj.(*T); ok {
				s.inbox.post(func() { onUpdate(nil, is) })
			}
		},
		UpdateFunc: func(old, obj any) {
			was, _ := old.(*T)
			if is, ok := obj.(*T); ok {
				s.inbox.post(func() { onUpdate(was, is) })
			}
		},
		DeleteFunc: func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if was, ok := obj.(*T); ok {
				s.inbox.post(func() { onDelete(was) })
			}
		},
	}
}

func (s *Scheduler) podUpdated(was, is *corev1.Pod) {
	now := time.Now()
	if was != nil && was.UID != is.UID {
		s.podDeleted(was)
		was = nil
	}
	switch {
	case placement.IsTerminal(is):
		if was == nil || !placement.IsTerminal(was) {
			s.podDeleted(is)
		}
	case is.Spec.NodeName != "":
		knownBound := s.cluster.NodeOf(is.UID) != ""
		s.queue.remove(is.UID)
		if knownBound && was != nil && was.Spec.NodeName != "" && equalForScheduling(was, is) {
			return
		}
		s.cluster.AddPod(is)
		filters := []placement.Filter{placement.FilterPodTopologySpread, placement.FilterInterPodAffinity}
		if knownBound {
			filters = podFilters // it may have been resized, relabeled or marked for deletion
		}
		s.queue.requeueRejectedBy(now, filters...)
	case cmp.Or(is.Spec.SchedulerName, DefaultName) != s.Name:
	case is.DeletionTimestamp != nil:
		s.podDeleted(is)
	default:
		if qp, known := s.queue.entries[is.UID]; !known || qp.state != assumed {
			s.updateNomination(was, is, now)
		}
		if s.queue.update(is, now) {
			s.recordGated(is)
		}
	}
}

// updateNomination applies a change of the nominated node. Removing a nomination frees the reserved
// resources for other pods. If the pod had and has none, a nomination by this scheduler may not be
// written yet and is kept.
func (s *Scheduler) updateNomination(was, is *corev1.Pod, now time.Time) {
	had, has := "", is.Status.NominatedNodeName
	if was != nil {
		had = was.Status.NominatedNodeName
	}
	if had != "" || has != "" {
		s.cluster.Nominate(is.UID, is, has)
	}
	if had != "" && had != has {
		s.queue.requeueRejectedBy(now, podFilters...)
	}
}

// equalForScheduling reports whether two states of a bound pod are equal to all filters.
func equalForScheduling(a, b *corev1.Pod) bool {
	return (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		sameLabels(a.Labels, b.Labels) && apiequality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		apiequality.Semantic.DeepEqual(podspec.RequestsWithStatus(a), podspec.RequestsWithStatus(b))
}

func (s *Scheduler) podDeleted(pod *corev1.Pod) {
	bound := s.cluster.NodeOf(pod.UID) != ""
	s.queue.remove(pod.UID)
	s.cluster.RemovePod(pod.UID)
	if bound || pod.Status.NominatedNodeName != "" {
		s.queue.requeueRejectedBy(time.Now(), podFilters...)
	}
}

func (s *Scheduler) nodeUpdated(was, is *corev1.Node) {
	if was == nil {
		s.cluster.SetNode(is)
		s.queue.requeueRejectedBy(time.Now())
		return
	}
	var filters []placement.Filter
	if !apiequality.Semantic.DeepEqual(was.Status.Allocatable, is.Status.Allocatable) {
		filters = append(filters, placement.FilterNodeResourcesFit)
	}
	if !sameLabels(was.Labels, is.Labels) {
		filters = append(filters, placement.FilterNodeAffinity, placement.FilterVolumeBinding,
			placement.FilterPodTopologySpread, placement.FilterInterPodAffinity)
	}
	if !apiequality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) {
		filters = append(filters, placement.FilterTaintToleration, placement.FilterPodTopologySpread)
	}
	if was.Spec.Unschedulable != is.Spec.Unschedulable {
		filters = append(filters, placement.FilterNodeUnschedulable)
	}
	if len(filters) > 0 || len(was.Status.Images) != len(is.Status.Images) {
		s.cluster.SetNode(is)
	}
	if len(filters) > 0 {
		s.queue.requeueRejectedBy(time.Now(), filters...)
	}
}

func (s *Scheduler) nodeDeleted(n *corev1.Node) {
	s.cluster.RemoveNode(n.Name)
	s.queue.requeueRejectedBy(time.Now(), placement.FilterPodTopologySpread)
}

func (s *Scheduler) namespaceUpdated(was, is *corev1.Namespace) {
	if was == nil || !sameLabels(was.Labels, is.Labels) {
		s.cluster.SetNamespace(is.Name, is.Labels)
		s.queue.requeueRejectedBy(time.Now(), placement.FilterInterPodAffinity)
	}
}

func (s *Scheduler) namespaceDeleted(ns *corev1.Namespace) { s.cluster.RemoveNamespace(ns.Name) }

func (s *Scheduler) claimUpdated(_, _ *corev1.PersistentVolumeClaim) {
	s.queue.requeueRejectedBy(time.Now(), placement.FilterVolumeBinding)
}

func (s *Scheduler) volumeUpdated(_, _ *corev1.PersistentVolume) {
	s.queue.requeueRejectedBy(time.Now(), placement.FilterVolumeBinding)
}

// budgets returns the disruption budgets as reported in their status.
func (s *Scheduler) budgets() []placement.DisruptionBudget {
	list, err := s.Informers.Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return nil // the lister reads from memory and does not fail
	}
	out := make([]placement.DisruptionBudget, 0, len(list))
	for _, b := range list {
		pods, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || pods.Empty() && b.Spec.Selector == nil {
			continue
		}
		disrupted := make(map[string]bool, len(b.Status.DisruptedPods))
		for name := range b.Status.DisruptedPods {
			disrupted[name] = true
		}
		out = append(out, placement.DisruptionBudget{
			Namespace: b.Namespace, Selector: pods, DisruptionsAllowed: int(b.Status.DisruptionsAllowed),
			DisruptedPods: disrupted,
		})
	}
	return out
}
