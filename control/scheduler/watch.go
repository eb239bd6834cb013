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

// podFilters are what a pod that goes may help with.
var podFilters = []placement.Filter{
	placement.FilterNodeResourcesFit, placement.FilterNodePorts, placement.FilterPodTopologySpread, placement.FilterInterPodAffinity,
}

// eventHandlers makes handlers that tell Run's goroutine: now is the object as it is, was
// as it was when last told (nil: new).
func eventHandlers[T any](s *Scheduler, now func(was, is *T), gone func(*T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if is, ok := obj.(*T); ok {
				s.inbox.post(func() { now(nil, is) })
			}
		},
		UpdateFunc: func(old, obj any) {
			was, _ := old.(*T)
			if is, ok := obj.(*T); ok {
				s.inbox.post(func() { now(was, is) })
			}
		},
		DeleteFunc: func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if was, ok := obj.(*T); ok {
				s.inbox.post(func() { gone(was) })
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
		placedBefore := s.cluster.NodeOf(is.UID) != ""
		s.queue.remove(is.UID)
		if placedBefore && was != nil && was.Spec.NodeName != "" && equalForScheduling(was, is) {
			return
		}
		s.cluster.AddPod(is)
		rules := []placement.Filter{placement.FilterPodTopologySpread, placement.FilterInterPodAffinity}
		if placedBefore {
			rules = podFilters // it may have been resized, relabelled or be ending
		}
		s.queue.requeueRejectedBy(now, rules...)
	case cmp.Or(is.Spec.SchedulerName, DefaultName) != s.Name:
	case is.DeletionTimestamp != nil:
		s.podDeleted(is)
	default:
		if e, known := s.queue.entries[is.UID]; !known || e.state != assumed {
			s.updateNomination(was, is, now)
		}
		if s.queue.update(is, now) {
			s.recordGated(is)
		}
	}
}

// updateNomination takes in a nomination, or that it is withdrawn: the room that was
// kept is others' then. Where there was none and is none, one of our own may be on
// its way to the server, and is kept.
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

// equalForScheduling reports whether two states of a bound pod are one to all rules.
func equalForScheduling(a, b *corev1.Pod) bool {
	return (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		sameLabels(a.Labels, b.Labels) && apiequality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		apiequality.Semantic.DeepEqual(podspec.RequestsWithStatus(a), podspec.RequestsWithStatus(b))
}

func (s *Scheduler) podDeleted(pod *corev1.Pod) {
	placed := s.cluster.NodeOf(pod.UID) != ""
	s.queue.remove(pod.UID)
	s.cluster.RemovePod(pod.UID)
	if placed || pod.Status.NominatedNodeName != "" {
		s.queue.requeueRejectedBy(time.Now(), podFilters...)
	}
}

func (s *Scheduler) nodeUpdated(was, is *corev1.Node) {
	if was == nil {
		s.cluster.SetNode(is)
		s.queue.requeueRejectedBy(time.Now())
		return
	}
	var rules []placement.Filter
	if !apiequality.Semantic.DeepEqual(was.Status.Allocatable, is.Status.Allocatable) {
		rules = append(rules, placement.FilterNodeResourcesFit)
	}
	if !sameLabels(was.Labels, is.Labels) {
		rules = append(rules, placement.FilterNodeAffinity, placement.FilterVolumeBinding, placement.FilterPodTopologySpread, placement.FilterInterPodAffinity)
	}
	if !apiequality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) {
		rules = append(rules, placement.FilterTaintToleration, placement.FilterPodTopologySpread)
	}
	if was.Spec.Unschedulable != is.Spec.Unschedulable {
		rules = append(rules, placement.FilterNodeUnschedulable)
	}
	if len(rules) > 0 || len(was.Status.Images) != len(is.Status.Images) {
		s.cluster.SetNode(is)
	}
	if len(rules) > 0 {
		s.queue.requeueRejectedBy(time.Now(), rules...)
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

// budgets are the disruption budgets as their status says they stand.
func (s *Scheduler) budgets() []placement.DisruptionBudget {
	list, err := s.Informers.Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return nil // a lister over memory has no errors
	}
	out := make([]placement.DisruptionBudget, 0, len(list))
	for _, b := range list {
		pods, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || pods.Empty() && b.Spec.Selector == nil {
			continue
		}
		gone := make(map[string]bool, len(b.Status.DisruptedPods))
		for name := range b.Status.DisruptedPods {
			gone[name] = true
		}
		out = append(out, placement.DisruptionBudget{
			Namespace: b.Namespace, Selector: pods, DisruptionsAllowed: int(b.Status.DisruptionsAllowed), DisruptedPods: gone,
		})
	}
	return out
}
