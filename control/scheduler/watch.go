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

// podRules are what a pod that goes may help with.
var podRules = []placement.Rule{
	placement.RuleResources, placement.RulePorts, placement.RuleSpread, placement.RulePodAffinity,
}

// seen makes handlers that tell Run's goroutine: now is the object as it is, was
// as it was when last told (nil: new).
func seen[T any](s *Scheduler, now func(was, is *T), gone func(*T)) cache.ResourceEventHandlerFuncs {
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

func (s *Scheduler) podSeen(was, is *corev1.Pod) {
	now := time.Now()
	if was != nil && was.UID != is.UID {
		s.podGone(was)
		was = nil
	}
	switch {
	case placement.Ended(is):
		if was == nil || !placement.Ended(was) {
			s.podGone(is)
		}
	case is.Spec.NodeName != "":
		placedBefore := s.cluster.Placed(is.UID) != ""
		s.queue.drop(is.UID)
		if placedBefore && was != nil && was.Spec.NodeName != "" && alike(was, is) {
			return
		}
		s.cluster.Add(is)
		rules := []placement.Rule{placement.RuleSpread, placement.RulePodAffinity}
		if placedBefore {
			rules = podRules // it may have been resized, relabelled or be ending
		}
		s.queue.tell(now, rules...)
	case cmp.Or(is.Spec.SchedulerName, DefaultName) != s.Name:
	case is.DeletionTimestamp != nil:
		s.podGone(is)
	default:
		if e, known := s.queue.entries[is.UID]; !known || e.state != assumed {
			s.nominationSeen(was, is, now)
		}
		if s.queue.set(is, now) {
			s.gated(is)
		}
	}
}

// nominationSeen takes in a nomination, or that it is withdrawn: the room that was
// kept is others' then. Where there was none and is none, one of our own may be on
// its way to the server, and is kept.
func (s *Scheduler) nominationSeen(was, is *corev1.Pod, now time.Time) {
	had, has := "", is.Status.NominatedNodeName
	if was != nil {
		had = was.Status.NominatedNodeName
	}
	if had != "" || has != "" {
		s.cluster.Nominate(is.UID, is, has)
	}
	if had != "" && had != has {
		s.queue.tell(now, podRules...)
	}
}

// alike reports whether two states of a bound pod are one to all rules.
func alike(a, b *corev1.Pod) bool {
	return (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		sameLabels(a.Labels, b.Labels) && apiequality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		apiequality.Semantic.DeepEqual(podspec.RequestsWithStatus(a), podspec.RequestsWithStatus(b))
}

func (s *Scheduler) podGone(pod *corev1.Pod) {
	placed := s.cluster.Placed(pod.UID) != ""
	s.queue.drop(pod.UID)
	s.cluster.Remove(pod.UID)
	if placed || pod.Status.NominatedNodeName != "" {
		s.queue.tell(time.Now(), podRules...)
	}
}

func (s *Scheduler) nodeSeen(was, is *corev1.Node) {
	if was == nil {
		s.cluster.SetNode(is)
		s.queue.tell(time.Now())
		return
	}
	var rules []placement.Rule
	if !apiequality.Semantic.DeepEqual(was.Status.Allocatable, is.Status.Allocatable) {
		rules = append(rules, placement.RuleResources)
	}
	if !sameLabels(was.Labels, is.Labels) {
		rules = append(rules, placement.RuleAffinity, placement.RuleVolumes, placement.RuleSpread, placement.RulePodAffinity)
	}
	if !apiequality.Semantic.DeepEqual(was.Spec.Taints, is.Spec.Taints) {
		rules = append(rules, placement.RuleTaints, placement.RuleSpread)
	}
	if was.Spec.Unschedulable != is.Spec.Unschedulable {
		rules = append(rules, placement.RuleUnschedulable)
	}
	if len(rules) > 0 || len(was.Status.Images) != len(is.Status.Images) {
		s.cluster.SetNode(is)
	}
	if len(rules) > 0 {
		s.queue.tell(time.Now(), rules...)
	}
}

func (s *Scheduler) nodeGone(n *corev1.Node) {
	s.cluster.RemoveNode(n.Name)
	s.queue.tell(time.Now(), placement.RuleSpread)
}

func (s *Scheduler) namespaceSeen(was, is *corev1.Namespace) {
	if was == nil || !sameLabels(was.Labels, is.Labels) {
		s.cluster.SetNamespace(is.Name, is.Labels)
		s.queue.tell(time.Now(), placement.RulePodAffinity)
	}
}

func (s *Scheduler) namespaceGone(ns *corev1.Namespace) { s.cluster.RemoveNamespace(ns.Name) }

func (s *Scheduler) claimSeen(_, _ *corev1.PersistentVolumeClaim) {
	s.queue.tell(time.Now(), placement.RuleVolumes)
}

func (s *Scheduler) volumeSeen(_, _ *corev1.PersistentVolume) {
	s.queue.tell(time.Now(), placement.RuleVolumes)
}

// budgets are the disruption budgets as their status says they stand.
func (s *Scheduler) budgets() []placement.Budget {
	list, err := s.Informers.Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return nil // a lister over memory has no errors
	}
	out := make([]placement.Budget, 0, len(list))
	for _, b := range list {
		pods, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || pods.Empty() && b.Spec.Selector == nil {
			continue
		}
		gone := make(map[string]bool, len(b.Status.DisruptedPods))
		for name := range b.Status.DisruptedPods {
			gone[name] = true
		}
		out = append(out, placement.Budget{
			Namespace: b.Namespace, Pods: pods, Allowed: int(b.Status.DisruptionsAllowed), Gone: gone,
		})
	}
	return out
}
