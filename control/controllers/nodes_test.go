package controllers

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

func taintsOf(n *corev1.Node) (out []string) {
	for _, t := range n.Spec.Taints {
		out = append(out, t.Key+":"+string(t.Effect))
	}
	slices.Sort(out)
	return out
}

func TestUnreachableNodeLosesPodsAndRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counters := func() (evictions, deletions float64) {
			evictions, _ = metricOf(t, "node_collector_evictions_total", map[string]string{"zone": "r:\x00:z"})
			deletions, _ = metricOf(t, "taint_eviction_controller_pod_deletions_total", nil)
			return evictions, deletions
		}
		evictionsBefore, deletionsBefore := counters()
		lost := newNode("lost", corev1.ConditionTrue)
		lost.Labels = map[string]string{corev1.LabelTopologyRegion: "r", corev1.LabelTopologyZone: "z"}
		client := startControllers(t, Config{}, []string{NodeLifecycle, TaintEviction},
			lost, newNode("healthy", corev1.ConditionTrue),
			newPod("tolerates-300s", "lost", withToleration(300)), newPod("tolerates-10s", "lost", withToleration(10)),
			newPod("daemon", "lost", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			}), newPod("elsewhere", "healthy"))
		renewLease(t, client, "lost")
		run := func(d time.Duration) {
			for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(time.Second) {
				renewLease(t, client, "healthy")
				synctest.Wait()
			}
		}
		run(38 * time.Second)
		if got := taintsOf(getNode(t, client, "lost")); got != nil {
			t.Errorf("before the grace period ends, the node has taints %v", got)
		}
		run(5 * time.Second)
		n := getNode(t, client, "lost")
		if ready := nodeCondition(n, corev1.NodeReady); ready.Status != corev1.ConditionUnknown ||
			ready.Message != "Kubelet stopped posting node status." {
			t.Errorf("got Ready condition %+v", ready)
		}
		want := []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}
		if got := taintsOf(n); !slices.Equal(got, want) {
			t.Errorf("got taints %v", got)
		}
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "tolerates-300s", metav1.GetOptions{})
		if err != nil || podReady(pod) {
			t.Errorf("the pod of an unreachable node is ready (%v)", err)
		}
		run(12 * time.Second)
		if got := podNames(t, client); slices.Contains(got, "tolerates-10s") ||
			!slices.Contains(got, "tolerates-300s") {
			t.Errorf("after 10 s, got pods %v", got)
		}
		run(300 * time.Second)
		if got := podNames(t, client); !slices.Equal(got, []string{"daemon", "elsewhere"}) {
			t.Errorf("after 300 s, got pods %v", got)
		}
		evictions, deletions := counters()
		if n, m := evictions-evictionsBefore, deletions-deletionsBefore; n != 1 || m != 2 {
			t.Errorf("the metrics count %v evicted nodes and %v deleted pods, want 1 and 2", n, m)
		}
		n = getNode(t, client, "lost")
		*nodeCondition(n, corev1.NodeReady) = newNode("", corev1.ConditionTrue).Status.Conditions[0]
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		renewLease(t, client, "lost")
		synctest.Wait()
		if got := taintsOf(getNode(t, client, "lost")); got != nil {
			t.Errorf("after recovery, the node has taints %v", got)
		}
	})
}

func TestNoEvictionWithoutReadyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := startControllers(t, Config{}, []string{NodeLifecycle, TaintEviction},
			newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionTrue),
			newPod("pod", "a", withToleration(10)))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("got %v", got)
		}
		if got := taintsOf(getNode(t, client, "a")); !slices.Equal(got,
			[]string{"node.kubernetes.io/unreachable:NoSchedule"}) {
			t.Errorf("got taints %v", got)
		}
	})
}

// TestNoEvictionAfterLastReadyNodeIsLost: the last node becomes unreachable later than the others.
func TestNoEvictionAfterLastReadyNodeIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := startControllers(t, Config{}, []string{NodeLifecycle, TaintEviction},
			newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionTrue),
			newPod("pod", "a", withToleration(10)))
		time.Sleep(5 * time.Second)
		renewLease(t, client, "b")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

// TestEvictionIsRateLimitedPerNode also checks that evictions stop while most nodes are
// unreachable.
func TestEvictionIsRateLimitedPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		var names []string
		for i := range 10 {
			names = append(names, "n"+strconv.Itoa(i))
			objects = append(objects, newNode(names[i], corev1.ConditionTrue), newPod("p"+strconv.Itoa(i), names[i]))
		}
		client := startControllers(t, Config{}, []string{NodeLifecycle, TaintEviction}, objects...)
		run := func(from int, d time.Duration) int {
			for deadline := time.Now().Add(d); time.Now().Before(deadline); time.Sleep(time.Second) {
				for _, name := range names[from:] {
					renewLease(t, client, name)
				}
				synctest.Wait()
			}
			return len(podNames(t, client))
		}
		if left := run(3, 45*time.Second); left != 9 {
			t.Errorf("5 s after three nodes became unreachable, got %d pods, want 9", left)
		}
		if left := run(3, 10*time.Second); left != 8 {
			t.Errorf("10 s later, got %d pods", left)
		}
		if left := run(3, 10*time.Second); left != 7 {
			t.Errorf("10 s later, got %d pods", left)
		}
		if left := run(6, 10*time.Minute); left != 7 {
			t.Errorf("with six unreachable nodes, got %d pods", left)
		}
		if got := taintsOf(getNode(t, client, "n5")); !slices.Equal(got,
			[]string{"node.kubernetes.io/unreachable:NoSchedule"}) {
			t.Errorf("an unreachable node has taints %v", got)
		}
		// With one node back, five of ten are unreachable, which is below the threshold.
		n := getNode(t, client, "n0")
		*nodeCondition(n, corev1.NodeReady) = newNode("", corev1.ConditionTrue).Status.Conditions[0]
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		names = append(names, "n0")
		if left := run(6, time.Minute); left != 4 {
			t.Errorf("with one node recovered, got %d pods", left)
		}
	})
}

func TestTaintsByCondition(t *testing.T) {
	n := newNode("n", corev1.ConditionFalse)
	n.Spec.Unschedulable = true
	n.Status.Conditions = append(n.Status.Conditions,
		corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue},
		corev1.NodeCondition{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue},
		corev1.NodeCondition{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse},
		corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
	n.Spec.Taints = desiredTaints(n, true)
	want := []string{
		"node.kubernetes.io/disk-pressure:NoSchedule", "node.kubernetes.io/memory-pressure:NoSchedule",
		"node.kubernetes.io/network-unavailable:NoSchedule", "node.kubernetes.io/not-ready:NoExecute",
		"node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule",
	}
	if got := taintsOf(n); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestEvictionTime(t *testing.T) {
	added := metav1.NewTime(time.Unix(1000, 0))
	taint := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	other := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	for name, row := range map[string]struct {
		pod    *corev1.Pod
		taints []corev1.Taint
		at     int64 // 0: immediately
		evict  bool
	}{
		"no taint":          {newPod("p", "n"), nil, 0, false},
		"not tolerated":     {newPod("p", "n"), []corev1.Taint{taint}, 0, true},
		"tolerationSeconds": {newPod("p", "n", withToleration(30)), []corev1.Taint{taint}, 1030, true},
		"shortest tolerationSeconds": {newPod("p", "n", withToleration(30), withToleration(10)), []corev1.Taint{taint},
			1010, true},
		"one of two taints not tolerated": {newPod("p", "n", withToleration(30)), []corev1.Taint{taint, other}, 0,
			true},
		"negative tolerationSeconds": {newPod("p", "n", withToleration(-5)), []corev1.Taint{taint}, 1000, true},
		"time before the binding": {newPod("p", "n", withToleration(30), withBindingTime(1020)),
			[]corev1.Taint{taint}, 1050, true},
		"time before the creation": {newPod("p", "n", withToleration(30), withCreationTime(1010)),
			[]corev1.Taint{taint}, 1040, true},
		"pod bound before the taint": {newPod("p", "n", withToleration(30), withCreationTime(900),
			withBindingTime(990)),
			[]corev1.Taint{taint}, 1030, true},
		"tolerated forever": {newPod("p", "n", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{
				{Operator: "Exists"}}
		}), []corev1.Taint{taint}, 0, false},
	} {
		at, evict := evictionTime(row.pod, row.taints, time.Time{})
		if evict != row.evict || evict && !at.IsZero() && at.Unix() != row.at || evict && at.IsZero() && row.at != 0 {
			t.Errorf("%s: got eviction %v at %v", name, evict, at)
		}
	}
}

// TestTolerationSecondsStartWithController: the node became unreachable before the control server
// stopped. Pods with tolerationSeconds are evicted that long after the restart, and pods without a
// toleration immediately.
func TestTolerationSecondsStartWithController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := metav1.NewTime(time.Now().Add(-12 * time.Minute))
		node := newNode("a", corev1.ConditionUnknown)
		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute,
			TimeAdded: &old}}
		before := withCreationTime(old.Add(-time.Hour).Unix())
		client := startControllers(t, Config{}, []string{TaintEviction}, node,
			newPod("no-toleration", "a", before), newPod("tolerates-300s", "a", before, withToleration(300)))
		time.Sleep(299 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"tolerates-300s"}) {
			t.Errorf("299 s after the start, got pods %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 0 {
			t.Errorf("301 s after the start, got pods %v", got)
		}
	})
}

// TestRecoveredNodeKeepsPodsAfterRestart: the taint is older than tolerationSeconds.
func TestRecoveredNodeKeepsPodsAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := metav1.NewTime(time.Now().Add(-12 * time.Minute))
		node := newNode("a", corev1.ConditionUnknown)
		node.Status.Conditions[0].Reason = reasonStatusUnknown
		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute,
			TimeAdded: &old}}
		client := startControllers(t, Config{}, []string{NodeLifecycle, TaintEviction}, node, newNode("healthy",
			corev1.ConditionTrue),
			newPod("pod", "a", withCreationTime(old.Add(-time.Hour).Unix()), withToleration(300)))
		time.Sleep(5 * time.Second) // the maximum backoff of the agent
		n := getNode(t, client, "a")
		*nodeCondition(n, corev1.NodeReady) = newNode("", corev1.ConditionTrue).Status.Conditions[0]
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Second) {
			renewLease(t, client, "a")
			renewLease(t, client, "healthy")
		}
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("got %v", got)
		}
	})
}

func withCreationTime(at int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(at, 0) }
}

func withBindingTime(at int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(at, 0)})
	}
}

// TestTaintWithoutTimeAddedStartsWhenObserved: kubectl taint does not set timeAdded.
func TestTaintWithoutTimeAddedStartsWhenObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("a", corev1.ConditionTrue)
		node.Spec.Taints = []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoExecute}}
		client := startControllers(t, Config{}, []string{TaintEviction}, node, newPod("no-toleration", "a"),
			newPod("tolerates-300s", "a", func(p *corev1.Pod) {
				seconds := int64(30)
				p.Spec.Tolerations = []corev1.Toleration{{Key: "mine", Operator: "Exists", TolerationSeconds: &seconds}}
			}))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"tolerates-300s"}) {
			t.Errorf("before tolerationSeconds, got pods %v", got)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 0 {
			t.Errorf("after tolerationSeconds, got pods %v", got)
		}
	})
}

// TestRemovedTaintResetsObservedTime: the time of a later taint with the same key starts again.
func TestRemovedTaintResetsObservedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &taintEvictionController{firstObserved: map[types.UID]map[corev1.Taint]time.Time{}}
		node := newNode("a", corev1.ConditionTrue)
		node.UID = "1"
		taint := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoExecute}
		since := func(taints ...corev1.Taint) time.Time {
			node.Spec.Taints = taints
			out := e.datedTaints(node)
			if len(out) == 0 {
				return time.Time{}
			}
			return out[0].TimeAdded.Time
		}
		first := since(taint)
		time.Sleep(time.Second)
		if got := since(taint); !got.Equal(first) || node.Spec.Taints[0].TimeAdded != nil {
			t.Errorf("got timeAdded %v, then %v", first, got)
		}
		since()
		if len(e.firstObserved) != 0 {
			t.Errorf("taints still recorded: %v", e.firstObserved)
		}
		if got := since(taint); !got.After(first) {
			t.Errorf("got second timeAdded %v", got)
		}
		e.forgetNode(node)
		if len(e.firstObserved) != 0 {
			t.Errorf("taints of a deleted node still recorded: %v", e.firstObserved)
		}
	})
}

func TestFirstFreePodCIDR(t *testing.T) {
	taken := map[netip.Prefix]bool{}
	clusterCIDR := netip.MustParsePrefix("10.42.0.0/22")
	for _, want := range []string{"10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24", "10.42.3.0/24"} {
		p, ok := firstFree(clusterCIDR, taken)
		if !ok || p.String() != want {
			t.Fatalf("got %v, want %s", p, want)
		}
		taken[p] = true
	}
	if p, ok := firstFree(clusterCIDR, taken); ok {
		t.Errorf("got a fifth CIDR: %v", p)
	}
	delete(taken, netip.MustParsePrefix("10.42.2.0/24"))
	if p, _ := firstFree(clusterCIDR, taken); p.String() != "10.42.2.0/24" {
		t.Errorf("released CIDR not allocated: %v", p)
	}
	taken = map[netip.Prefix]bool{netip.MustParsePrefix("10.42.0.0/23"): true}
	if p, _ := firstFree(clusterCIDR, taken); p.String() != "10.42.2.0/24" {
		t.Errorf("got overlapping CIDR %v", p)
	}
	if p, ok := firstFree(netip.MustParsePrefix("10.1.2.128/25"), nil); !ok || p.String() != "10.1.2.128/25" {
		t.Errorf("small cluster CIDR: %v", p)
	}
	if p, ok := firstFree(netip.MustParsePrefix("255.255.255.0/24"), map[netip.Prefix]bool{
		netip.MustParsePrefix("255.255.255.0/24"): true}); ok {
		t.Errorf("end of the address space: %v", p)
	}
	if p, ok := firstFree(netip.MustParsePrefix("fd00:1::/56"), map[netip.Prefix]bool{
		netip.MustParsePrefix("fd00:1::/64"): true}); !ok || p.String() != "fd00:1:0:1::/64" {
		t.Errorf("IPv6: %v", p)
	}
}

func TestNodeIPAMAssignsDistinctPodCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newNode("old", corev1.ConditionTrue)
		old.Spec.PodCIDR, old.Spec.PodCIDRs = "10.42.0.0/24", []string{"10.42.0.0/24"}
		client := startControllers(t, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}},
			[]string{NodeIPAM},
			old, newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionTrue))
		time.Sleep(time.Second) // until the caches are synced
		synctest.Wait()
		got := []string{getNode(t, client, "a").Spec.PodCIDR, getNode(t, client, "b").Spec.PodCIDR}
		slices.Sort(got)
		if !slices.Equal(got, []string{"10.42.1.0/24", "10.42.2.0/24"}) || getNode(t, client,
			"old").Spec.PodCIDR != "10.42.0.0/24" {
			t.Errorf("got %v", got)
		}
	})
}

// TestNodeIPAMReportsExhaustedCIDR also checks that a released pod CIDR is assigned.
func TestNodeIPAMReportsExhaustedCIDR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newNode("old", corev1.ConditionTrue)
		old.Spec.PodCIDR, old.Spec.PodCIDRs = "10.42.0.0/24", []string{"10.42.0.0/24"}
		events := record.NewFakeRecorder(100)
		client := startControllers(t, Config{Events: events, ClusterCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.42.0.0/24")}}, []string{NodeIPAM},
			old, newNode("late", corev1.ConditionTrue))
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case got := <-events.Events:
			if got != "Normal CIDRNotAvailable Node late status is now: CIDRNotAvailable" {
				t.Errorf("got event %s", got)
			}
		default:
			t.Error("no event")
		}
		if err := client.CoreV1().Nodes().Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := getNode(t, client, "late").Spec.PodCIDR; got != "10.42.0.0/24" {
			t.Errorf("after a CIDR was released, got %q", got)
		}
	})
}

func TestPodGCDeletesOrphanedAndTerminatedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
		client := startControllers(t, Config{TerminatedPodGCThreshold: 1}, []string{PodGC},
			newNode("here", corev1.ConditionTrue), newPod("orphan", "missing"), newPod("kept", "here"),
			newPod("waiting", ""),
			newPod("old", "here", ended), newPod("young", "here", ended,
				func(p *corev1.Pod) { p.CreationTimestamp = metav1.Now() }))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"kept", "orphan", "waiting", "young"}) {
			t.Errorf("after 30 s, got pods %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"kept", "waiting", "young"}) {
			t.Errorf("after 90 s, got pods %v", got)
		}
	})
}
