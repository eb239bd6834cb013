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
		placement.FilterInterPodAffinity,
	}
	for what, r := range map[string]struct {
		change func(*corev1.Node)
		wakes  []placement.Filter
	}{
		"label": {
			func(n *corev1.Node) { n.Labels = map[string]string{"disk": "fast"} },
			// volumes select nodes by label
			[]placement.Filter{placement.FilterNodeAffinity, placement.FilterVolumeBinding, placement.FilterPodTopologySpread,
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
		was := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		s.nodeUpdated(nil, was)
		byRule := map[placement.Filter]types.UID{}
		for _, rule := range all {
			p := pod(string(rule), 0)
			s.queue.update(p, time.Now())
			s.queue.addUnschedulable(s.queue.pop(time.Now()), []placement.Filter{rule}, time.Now())
			byRule[rule] = p.UID
		}
		is := was.DeepCopy()
		r.change(is)
		s.nodeUpdated(was, is)
		var woken []placement.Filter
		for _, rule := range slices.Sorted(maps.Keys(byRule)) {
			if s.queue.entries[byRule[rule]].state != unschedulable {
				woken = append(woken, rule)
			}
		}
		if slices.Sort(r.wakes); !slices.Equal(woken, r.wakes) {
			t.Errorf("%s: requeued pods rejected by %v, want %v", what, woken, r.wakes)
		}
	}
}

// TestRemovedNominationFreesResources also checks that unschedulable pods are requeued.
func TestRemovedNominationFreesResources(t *testing.T) {
	t.Parallel()
	s := &Scheduler{Config: Config{Name: DefaultName}, cluster: placement.NewCluster(), queue: newQueue()}
	one := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourcePods: resource.MustParse("9")}
	s.nodeUpdated(nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Allocatable: one}})
	wanting := func(name, nominated string) *corev1.Pod {
		p := pod(name, 0)
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: one[corev1.ResourceCPU]}}}}
		p.Status.NominatedNodeName = nominated
		return p
	}
	keeps := func(when string, want bool) {
		t.Helper()
		if got := s.cluster.Schedule(wanting("other", "")).Node == ""; got != want {
			t.Errorf("%s: resources are reserved: %v", when, got)
		}
	}
	s.podUpdated(nil, wanting("p", ""))
	s.cluster.Nominate("p", wanting("p", ""), "n")
	s.podUpdated(wanting("p", ""), wanting("p", ""))
	keeps("after an update without the nomination", true)
	s.podUpdated(wanting("p", ""), wanting("p", "n"))
	keeps("nominated", true)

	s.queue.update(wanting("waits", ""), time.Now())
	for e := s.queue.pop(time.Now()); e != nil; e = s.queue.pop(time.Now()) {
		s.queue.addUnschedulable(e, []placement.Filter{placement.FilterNodeResourcesFit}, time.Now())
	}
	s.podUpdated(wanting("p", "n"), wanting("p", ""))
	keeps("after removal of the nomination", false)
	if s.queue.entries["waits"].state == unschedulable {
		t.Error("an unschedulable pod was not requeued")
	}
}
