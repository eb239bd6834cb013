package scheduler

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
	placement.FilterInterPodAffinity, placement.FilterVolumeRestrictions, placement.FilterVolumeLimits,
}

// Events of the cluster that may make pods schedulable.
const (
	eventAssignedPodAdd    queueEvent = "AssignedPodAdd"
	eventAssignedPodUpdate queueEvent = "AssignedPodUpdate"
	eventAssignedPodDelete queueEvent = "AssignedPodDelete"
	eventNodeAdd           queueEvent = "NodeAdd"
	eventNodeDelete        queueEvent = "NodeDelete"
	eventNodeAllocatable   queueEvent = "NodeUpdateNodeAllocatable"
	eventNodeLabel         queueEvent = "NodeUpdateNodeLabel"
	eventNodeTaint         queueEvent = "NodeUpdateNodeTaint" // also for spec.unschedulable
	eventNamespaceAdd      queueEvent = "NamespaceAdd"        // kube-scheduler does not watch namespaces for this
	eventNamespaceUpdate   queueEvent = "NamespaceUpdate"
	eventClaimAdd          queueEvent = "PersistentVolumeClaimAdd"
	eventClaimUpdate       queueEvent = "PersistentVolumeClaimUpdate"
	eventVolumeAdd         queueEvent = "PersistentVolumeAdd"
	eventVolumeUpdate      queueEvent = "PersistentVolumeUpdate"
	eventClassAdd          queueEvent = "StorageClassAdd"
	eventClassUpdate       queueEvent = "StorageClassUpdate"
	eventCSINode           queueEvent = "CSINodeUpdate"
	eventDriver            queueEvent = "CSIDriverUpdate"
	eventCapacity          queueEvent = "CSIStorageCapacityUpdate"
	eventAttachmentDelete  queueEvent = "VolumeAttachmentDelete"
)

// addOrUpdate returns the event for an object that was added if the old one is nil, else updated.
func addOrUpdate[T any](old *T, add, update queueEvent) queueEvent {
	if old == nil {
		return add
	}
	return update
}

// eventHandlers returns handlers that post to Run's goroutine. oldObj is nil for a new object.
func eventHandlers[T any](s *Scheduler, onUpdate func(oldObj, newObj *T),
	onDelete func(*T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if newObj, ok := obj.(*T); ok {
				s.inbox.post(func() { onUpdate(nil, newObj) })
			}
		},
		UpdateFunc: func(old, obj any) {
			oldObj, _ := old.(*T)
			if newObj, ok := obj.(*T); ok {
				s.inbox.post(func() { onUpdate(oldObj, newObj) })
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if oldObj, ok := obj.(*T); ok {
				s.inbox.post(func() { onDelete(oldObj) })
			}
		},
	}
}

func (s *Scheduler) podUpdated(old, pod *corev1.Pod) {
	now := time.Now()
	if old != nil && old.UID != pod.UID {
		s.podDeleted(old)
		old = nil
	}
	switch {
	case placement.IsTerminal(pod):
		if old == nil || !placement.IsTerminal(old) {
			s.podDeleted(pod)
		}
	case pod.Spec.NodeName != "":
		knownBound := s.cluster.NodeOf(pod.UID) != ""
		s.queue.remove(pod.UID)
		if knownBound && old != nil && old.Spec.NodeName != "" && equalForScheduling(old, pod) {
			return
		}
		s.cluster.AddPod(pod)
		if knownBound { // it may have been resized, relabeled or marked for deletion
			s.queue.requeueRejectedBy(eventAssignedPodUpdate, now, podFilters...)
			return
		}
		s.queue.requeueRejectedBy(eventAssignedPodAdd, now, placement.FilterPodTopologySpread,
			placement.FilterInterPodAffinity)
	case cmp.Or(pod.Spec.SchedulerName, DefaultName) != s.Name:
	case pod.DeletionTimestamp != nil:
		s.podDeleted(pod)
	default:
		if qp, known := s.queue.entries[pod.UID]; !known || qp.state != assumed {
			s.updateNomination(old, pod, now)
		}
		if s.queue.update(pod, now) {
			s.recordGated(pod)
		}
	}
}

// updateNomination applies a change of the nominated node. Removing a nomination frees the reserved
// resources for other pods. If the pod had and has none, a nomination by this scheduler may not be
// written yet and is kept.
func (s *Scheduler) updateNomination(old, pod *corev1.Pod, now time.Time) {
	oldNode, newNode := "", pod.Status.NominatedNodeName
	if old != nil {
		oldNode = old.Status.NominatedNodeName
	}
	if oldNode != "" || newNode != "" {
		s.cluster.Nominate(pod.UID, pod, newNode)
	}
	if oldNode != "" && oldNode != newNode {
		s.queue.requeueRejectedBy(eventAssignedPodDelete, now, podFilters...)
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
		s.queue.requeueRejectedBy(eventAssignedPodDelete, time.Now(), podFilters...)
	}
}

func (s *Scheduler) nodeUpdated(old, node *corev1.Node) {
	now := time.Now()
	if old == nil {
		s.cluster.SetNode(node)
		s.queue.requeueRejectedBy(eventNodeAdd, now)
		return
	}
	filters := map[queueEvent][]placement.Filter{}
	if !apiequality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
		filters[eventNodeAllocatable] = []placement.Filter{placement.FilterNodeResourcesFit}
	}
	if !sameLabels(old.Labels, node.Labels) {
		filters[eventNodeLabel] = []placement.Filter{placement.FilterNodeAffinity, placement.FilterPodFeatures,
			placement.FilterVolumeBinding, placement.FilterVolumeZone, placement.FilterPodTopologySpread,
			placement.FilterInterPodAffinity}
	}
	if !apiequality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		filters[eventNodeTaint] = []placement.Filter{placement.FilterTaintToleration, placement.FilterPodTopologySpread}
	}
	if old.Spec.Unschedulable != node.Spec.Unschedulable {
		filters[eventNodeTaint] = append(filters[eventNodeTaint], placement.FilterNodeUnschedulable)
	}
	if len(filters) > 0 || len(old.Status.Images) != len(node.Status.Images) {
		s.cluster.SetNode(node)
	}
	for _, event := range []queueEvent{eventNodeTaint, eventNodeAllocatable, eventNodeLabel} {
		if len(filters[event]) > 0 {
			s.queue.requeueRejectedBy(event, now, filters[event]...)
		}
	}
}

func (s *Scheduler) nodeDeleted(n *corev1.Node) {
	s.cluster.RemoveNode(n.Name)
	s.queue.requeueRejectedBy(eventNodeDelete, time.Now(), placement.FilterPodTopologySpread)
}

func (s *Scheduler) namespaceUpdated(old, ns *corev1.Namespace) {
	if old == nil || !sameLabels(old.Labels, ns.Labels) {
		s.cluster.SetNamespace(ns.Name, ns.Labels)
		s.queue.requeueRejectedBy(addOrUpdate(old, eventNamespaceAdd, eventNamespaceUpdate), time.Now(),
			placement.FilterInterPodAffinity)
	}
}

func (s *Scheduler) namespaceDeleted(ns *corev1.Namespace) { s.cluster.RemoveNamespace(ns.Name) }

func (s *Scheduler) claimUpdated(old, _ *corev1.PersistentVolumeClaim) {
	s.queue.requeueRejectedBy(addOrUpdate(old, eventClaimAdd, eventClaimUpdate), time.Now(),
		placement.FilterVolumeBinding, placement.FilterVolumeZone, placement.FilterVolumeRestrictions)
	s.checkVolumeBindings(time.Now())
}

func (s *Scheduler) volumeUpdated(old, _ *corev1.PersistentVolume) {
	s.queue.requeueRejectedBy(addOrUpdate(old, eventVolumeAdd, eventVolumeUpdate), time.Now(),
		placement.FilterVolumeBinding, placement.FilterVolumeZone)
	s.checkVolumeBindings(time.Now())
}

// driversChanged requeues pods after a change of what CSI drivers provide.
func (s *Scheduler) driversChanged(event queueEvent) {
	s.queue.requeueRejectedBy(event, time.Now(), placement.FilterVolumeBinding, placement.FilterVolumeLimits)
}

func (s *Scheduler) classUpdated(old, _ *storagev1.StorageClass) {
	s.queue.requeueRejectedBy(addOrUpdate(old, eventClassAdd, eventClassUpdate), time.Now(),
		placement.FilterVolumeBinding)
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
