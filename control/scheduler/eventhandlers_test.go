package scheduler

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/scheduler/placement"
)

// TestNodeUpdateRequeuesByFilter: an update requeues only pods rejected by an affected filter.
func TestNodeUpdateRequeuesByFilter(t *testing.T) {
	t.Parallel()
	all := []placement.Filter{
		placement.FilterNodeUnschedulable, placement.FilterNodeName, placement.FilterTaintToleration,
		placement.FilterNodeAffinity, placement.FilterVolumeBinding,
		placement.FilterNodePorts, placement.FilterNodeResourcesFit, placement.FilterPodTopologySpread,
		placement.FilterInterPodAffinity, placement.FilterPodFeatures,
	}
	for name, r := range map[string]struct {
		change   func(*corev1.Node)
		requeues []placement.Filter
	}{
		"label": {
			func(n *corev1.Node) { n.Labels = map[string]string{"disk": "fast"} },
			// volumes select nodes by label, and labels name unsupported features
			[]placement.Filter{placement.FilterNodeAffinity, placement.FilterVolumeBinding,
				placement.FilterPodFeatures,
				placement.FilterPodTopologySpread,
				placement.FilterInterPodAffinity},
		},
		"taint": {
			func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}} },
			[]placement.Filter{placement.FilterTaintToleration, placement.FilterPodTopologySpread},
		},
		"cordon": {func(n *corev1.Node) { n.Spec.Unschedulable = true },
			[]placement.Filter{placement.FilterNodeUnschedulable}},
		"allocatable": {
			func(n *corev1.Node) {
				n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("9")}
			},
			[]placement.Filter{placement.FilterNodeResourcesFit},
		},
		"image":            {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{}} }, nil},
		"resource version": {func(n *corev1.Node) { n.ResourceVersion = "2" }, nil},
	} {
		s := &Scheduler{cluster: placement.NewCluster(), queue: newQueue()}
		old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		s.nodeUpdated(nil, old)
		byFilter := map[placement.Filter]types.UID{}
		for _, filter := range all {
			p := pod(string(filter), 0)
			s.queue.update(p, time.Now())
			s.queue.addUnschedulable(s.queue.pop(time.Now()), []placement.Filter{filter}, time.Now())
			byFilter[filter] = p.UID
		}
		node := old.DeepCopy()
		r.change(node)
		s.nodeUpdated(old, node)
		var requeued []placement.Filter
		for _, filter := range slices.Sorted(maps.Keys(byFilter)) {
			if s.queue.entries[byFilter[filter]].state != unschedulable {
				requeued = append(requeued, filter)
			}
		}
		if slices.Sort(r.requeues); !slices.Equal(requeued, r.requeues) {
			t.Errorf("%s: requeued pods rejected by %v, want %v", name, requeued, r.requeues)
		}
	}
}

// TestRemovedNominationFreesResources also checks that unschedulable pods are requeued.
func TestRemovedNominationFreesResources(t *testing.T) {
	t.Parallel()
	s := &Scheduler{Config: Config{Name: DefaultName}, cluster: placement.NewCluster(), queue: newQueue()}
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
		corev1.ResourcePods: resource.MustParse("9")}
	s.nodeUpdated(nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{Allocatable: one}})
	requestingPod := func(name, nominated string) *corev1.Pod {
		p := pod(name, 0)
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: one[corev1.ResourceCPU]}}}}
		p.Status.NominatedNodeName = nominated
		return p
	}
	checkReserved := func(when string, want bool) {
		t.Helper()
		if got := s.cluster.Schedule(requestingPod("other", ""), placement.Related{}).Node == ""; got != want {
			t.Errorf("%s: resources are reserved: %v", when, got)
		}
	}
	s.podUpdated(nil, requestingPod("p", ""))
	s.cluster.Nominate("p", requestingPod("p", ""), "n")
	s.podUpdated(requestingPod("p", ""), requestingPod("p", ""))
	checkReserved("after an update without the nomination", true)
	s.podUpdated(requestingPod("p", ""), requestingPod("p", "n"))
	checkReserved("nominated", true)

	s.queue.update(requestingPod("waits", ""), time.Now())
	for e := s.queue.pop(time.Now()); e != nil; e = s.queue.pop(time.Now()) {
		s.queue.addUnschedulable(e, []placement.Filter{placement.FilterNodeResourcesFit}, time.Now())
	}
	s.podUpdated(requestingPod("p", "n"), requestingPod("p", ""))
	checkReserved("after removal of the nomination", false)
	if s.queue.entries["waits"].state == unschedulable {
		t.Error("an unschedulable pod was not requeued")
	}
}
