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

// TestALostNode falls silent, is found out, loses its pods, and comes back.
func TestALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := running(t, Config{}, []string{NodeLifecycle, TaintEviction},
			newNode("lost", corev1.ConditionTrue), newNode("fine", corev1.ConditionTrue),
			newPod("patient", "lost", tolerating(300)), newPod("hasty", "lost", tolerating(10)),
			newPod("daemon", "lost", func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			}), newPod("elsewhere", "fine"))
		beat(t, client, "lost")
		live := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				beat(t, client, "fine")
				synctest.Wait()
			}
		}
		live(38 * time.Second)
		if got := taintsOf(getNode(t, client, "lost")); got != nil {
			t.Errorf("before its time is over the node has the taints %v", got)
		}
		live(5 * time.Second)
		n := getNode(t, client, "lost")
		if ready := nodeCondition(n, corev1.NodeReady); ready.Status != corev1.ConditionUnknown || ready.Message != "Kubelet stopped posting node status." {
			t.Errorf("Ready is %+v", ready)
		}
		want := []string{"node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"}
		if got := taintsOf(n); !slices.Equal(got, want) {
			t.Errorf("taints are %v", got)
		}
		pod, err := client.CoreV1().Pods("default").Get(t.Context(), "patient", metav1.GetOptions{})
		if err != nil || podReady(pod) {
			t.Errorf("a pod of a lost node counts as ready (%v)", err)
		}
		live(12 * time.Second)
		if got := podNames(t, client); slices.Contains(got, "hasty") || !slices.Contains(got, "patient") {
			t.Errorf("after 10 s there are %v", got)
		}
		live(300 * time.Second)
		if got := podNames(t, client); !slices.Equal(got, []string{"daemon", "elsewhere"}) {
			t.Errorf("after 300 s there are %v", got)
		}
		n = getNode(t, client, "lost")
		*nodeCondition(n, corev1.NodeReady) = newNode("", corev1.ConditionTrue).Status.Conditions[0]
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		beat(t, client, "lost")
		synctest.Wait()
		if got := taintsOf(getNode(t, client, "lost")); got != nil {
			t.Errorf("back again, the node keeps the taints %v", got)
		}
	})
}

func TestWithAllNodesLostNoPodIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := running(t, Config{}, []string{NodeLifecycle, TaintEviction},
			newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionTrue), newPod("pod", "a", tolerating(10)))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("there are %v", got)
		}
		if got := taintsOf(getNode(t, client, "a")); !slices.Equal(got, []string{"node.kubernetes.io/unreachable:NoSchedule"}) {
			t.Errorf("taints are %v", got)
		}
	})
}

// TestWithTheLastNodeLostNoPodIsEnded: it is found out some time after the others.
func TestWithTheLastNodeLostNoPodIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := running(t, Config{}, []string{NodeLifecycle, TaintEviction},
			newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionTrue), newPod("pod", "a", tolerating(10)))
		time.Sleep(5 * time.Second)
		beat(t, client, "b")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("there are %v", got)
		}
	})
}

// TestLostNodesLoseTheirPodsOneByOne, and none of them while most are lost.
func TestLostNodesLoseTheirPodsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		var names []string
		for i := range 10 {
			names = append(names, "n"+strconv.Itoa(i))
			objects = append(objects, newNode(names[i], corev1.ConditionTrue), newPod("p"+strconv.Itoa(i), names[i]))
		}
		client := running(t, Config{}, []string{NodeLifecycle, TaintEviction}, objects...)
		live := func(from int, d time.Duration) int {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				for _, name := range names[from:] {
					beat(t, client, name)
				}
				synctest.Wait()
			}
			return len(podNames(t, client))
		}
		if left := live(3, 45*time.Second); left != 9 {
			t.Errorf("5 s after three nodes were lost there are %d pods of 10", left)
		}
		if left := live(3, 10*time.Second); left != 8 {
			t.Errorf("10 s later there are %d", left)
		}
		if left := live(3, 10*time.Second); left != 7 {
			t.Errorf("10 s later there are %d", left)
		}
		if left := live(6, 10*time.Minute); left != 7 {
			t.Errorf("with six nodes lost there are %d", left)
		}
		if got := taintsOf(getNode(t, client, "n5")); !slices.Equal(got, []string{"node.kubernetes.io/unreachable:NoSchedule"}) {
			t.Errorf("one of them has the taints %v", got)
		}
		// With one back it is five of ten: fewer than most.
		n := getNode(t, client, "n0")
		*nodeCondition(n, corev1.NodeReady) = newNode("", corev1.ConditionTrue).Status.Conditions[0]
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		names = append(names, "n0")
		if left := live(6, time.Minute); left != 4 {
			t.Errorf("with one of them back there are %d", left)
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

func TestEndBy(t *testing.T) {
	added := metav1.NewTime(time.Unix(1000, 0))
	taint := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	other := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoExecute, TimeAdded: &added}
	for sentence, row := range map[string]struct {
		pod    *corev1.Pod
		taints []corev1.Taint
		at     int64 // 0: at once
		goes   bool
	}{
		"no taint":                     {newPod("p", "n"), nil, 0, false},
		"not tolerated":                {newPod("p", "n"), []corev1.Taint{taint}, 0, true},
		"tolerated for a while":        {newPod("p", "n", tolerating(30)), []corev1.Taint{taint}, 1030, true},
		"the shortest toleration":      {newPod("p", "n", tolerating(30), tolerating(10)), []corev1.Taint{taint}, 1010, true},
		"one of two not tolerated":     {newPod("p", "n", tolerating(30)), []corev1.Taint{taint, other}, 0, true},
		"a negative time is no time":   {newPod("p", "n", tolerating(-5)), []corev1.Taint{taint}, 1000, true},
		"the time before the pod came": {newPod("p", "n", tolerating(30), bound(1020)), []corev1.Taint{taint}, 1050, true},
		"the time before it was made":  {newPod("p", "n", tolerating(30), made(1010)), []corev1.Taint{taint}, 1040, true},
		"a pod that came before":       {newPod("p", "n", tolerating(30), made(900), bound(990)), []corev1.Taint{taint}, 1030, true},
		"tolerated as long as it must": {newPod("p", "n", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}} }), []corev1.Taint{taint}, 0, false},
	} {
		at, goes := evictionTime(row.pod, row.taints, time.Time{})
		if goes != row.goes || goes && !at.IsZero() && at.Unix() != row.at || goes && at.IsZero() && row.at != 0 {
			t.Errorf("%s: %v %v", sentence, at, goes)
		}
	}
}

// TestTolerationRunsOnlyWhileTheServerIsThere: of a node that was lost before the
// server went off, the pods go after their time from the server's return, and those
// that do not tolerate its taint at once.
func TestTolerationRunsOnlyWhileTheServerIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := metav1.NewTime(time.Now().Add(-12 * time.Minute))
		node := newNode("a", corev1.ConditionUnknown)
		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &old}}
		before := made(old.Add(-time.Hour).Unix())
		client := running(t, Config{}, []string{TaintEviction}, node,
			newPod("loose", "a", before), newPod("patient", "a", before, tolerating(300)))
		time.Sleep(299 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"patient"}) {
			t.Errorf("299 s after the start there are %v", got)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 0 {
			t.Errorf("301 s after the start there are %v", got)
		}
	})
}

// TestANodeThatComesBackWithTheServerKeepsItsPods: its taint is older than they tolerate.
func TestANodeThatComesBackWithTheServerKeepsItsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := metav1.NewTime(time.Now().Add(-12 * time.Minute))
		node := newNode("a", corev1.ConditionUnknown)
		node.Status.Conditions[0].Reason = reasonStatusUnknown
		node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &old}}
		client := running(t, Config{}, []string{NodeLifecycle, TaintEviction}, node, newNode("fine", corev1.ConditionTrue),
			newPod("pod", "a", made(old.Add(-time.Hour).Unix()), tolerating(300)))
		time.Sleep(5 * time.Second) // the longest back-off of its agent
		n := getNode(t, client, "a")
		*nodeCondition(n, corev1.NodeReady) = newNode("", corev1.ConditionTrue).Status.Conditions[0]
		if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(10 * time.Second) {
			beat(t, client, "a")
			beat(t, client, "fine")
		}
		synctest.Wait()
		if got := podNames(t, client); len(got) != 1 {
			t.Errorf("there are %v", got)
		}
	})
}

func made(at int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp = metav1.Unix(at, 0) }
}

func bound(at int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(at, 0)})
	}
}

// TestATaintWithoutATimeCountsFromWhenItIsSeen: kubectl taint writes none.
func TestATaintWithoutATimeCountsFromWhenItIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("a", corev1.ConditionTrue)
		node.Spec.Taints = []corev1.Taint{{Key: "mine", Effect: corev1.TaintEffectNoExecute}}
		client := running(t, Config{}, []string{TaintEviction}, node, newPod("loose", "a"),
			newPod("patient", "a", func(p *corev1.Pod) {
				seconds := int64(30)
				p.Spec.Tolerations = []corev1.Toleration{{Key: "mine", Operator: "Exists", TolerationSeconds: &seconds}}
			}))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"patient"}) {
			t.Errorf("before the time is over there are %v", got)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); len(got) != 0 {
			t.Errorf("after it there are %v", got)
		}
	})
}

// TestATaintThatWentIsForgotten: the same one later counts from then.
func TestATaintThatWentIsForgotten(t *testing.T) {
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
			t.Errorf("seen at %v, then %v", first, got)
		}
		since()
		if len(e.firstObserved) != 0 {
			t.Errorf("kept: %v", e.firstObserved)
		}
		if got := since(taint); !got.After(first) {
			t.Errorf("the second counts from %v", got)
		}
		e.forgetNode(node)
		if len(e.firstObserved) != 0 {
			t.Errorf("kept of a node that is gone: %v", e.firstObserved)
		}
	})
}

func TestFirstFreeRange(t *testing.T) {
	taken := map[netip.Prefix]bool{}
	whole := netip.MustParsePrefix("10.42.0.0/22")
	for _, want := range []string{"10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24", "10.42.3.0/24"} {
		p, ok := firstFree(whole, taken)
		if !ok || p.String() != want {
			t.Fatalf("got %v, want %s", p, want)
		}
		taken[p] = true
	}
	if p, ok := firstFree(whole, taken); ok {
		t.Errorf("a fifth: %v", p)
	}
	delete(taken, netip.MustParsePrefix("10.42.2.0/24"))
	if p, _ := firstFree(whole, taken); p.String() != "10.42.2.0/24" {
		t.Errorf("a freed range is not given again: %v", p)
	}
	taken = map[netip.Prefix]bool{netip.MustParsePrefix("10.42.0.0/23"): true}
	if p, _ := firstFree(whole, taken); p.String() != "10.42.2.0/24" {
		t.Errorf("overlaps: %v", p)
	}
	if p, ok := firstFree(netip.MustParsePrefix("10.1.2.128/25"), nil); !ok || p.String() != "10.1.2.128/25" {
		t.Errorf("a small one: %v", p)
	}
	if p, ok := firstFree(netip.MustParsePrefix("255.255.255.0/24"), map[netip.Prefix]bool{netip.MustParsePrefix("255.255.255.0/24"): true}); ok {
		t.Errorf("after the last: %v", p)
	}
	if p, ok := firstFree(netip.MustParsePrefix("fd00:1::/56"), map[netip.Prefix]bool{netip.MustParsePrefix("fd00:1::/64"): true}); !ok || p.String() != "fd00:1:0:1::/64" {
		t.Errorf("IPv6: %v", p)
	}
}

func TestEveryNodeHasItsOwnRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newNode("old", corev1.ConditionTrue)
		old.Spec.PodCIDR, old.Spec.PodCIDRs = "10.42.0.0/24", []string{"10.42.0.0/24"}
		client := running(t, Config{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}}, []string{NodeIPAM},
			old, newNode("a", corev1.ConditionTrue), newNode("b", corev1.ConditionTrue))
		time.Sleep(time.Second) // the bubble's: the caches are full then
		synctest.Wait()
		got := []string{getNode(t, client, "a").Spec.PodCIDR, getNode(t, client, "b").Spec.PodCIDR}
		slices.Sort(got)
		if !slices.Equal(got, []string{"10.42.1.0/24", "10.42.2.0/24"}) || getNode(t, client, "old").Spec.PodCIDR != "10.42.0.0/24" {
			t.Errorf("got %v", got)
		}
	})
}

// TestWithNoRangeLeftTheNodeIsTold, and has one as soon as another gives its back.
func TestWithNoRangeLeftTheNodeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := newNode("old", corev1.ConditionTrue)
		old.Spec.PodCIDR, old.Spec.PodCIDRs = "10.42.0.0/24", []string{"10.42.0.0/24"}
		told := record.NewFakeRecorder(100)
		client := running(t, Config{Events: told, ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24")}}, []string{NodeIPAM},
			old, newNode("late", corev1.ConditionTrue))
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case got := <-told.Events:
			if got != "Warning CIDRNotAvailable no range of pod addresses is left in 10.42.0.0/24" {
				t.Errorf("the event is %s", got)
			}
		default:
			t.Error("there is no event")
		}
		if err := client.CoreV1().Nodes().Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := getNode(t, client, "late").Spec.PodCIDR; got != "10.42.0.0/24" {
			t.Errorf("after a range is free the node has %q", got)
		}
	})
}

func TestPodsOfGoneNodesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
		client := running(t, Config{TerminatedPodGCThreshold: 1}, []string{PodGC},
			newNode("here", corev1.ConditionTrue), newPod("orphan", "gone"), newPod("kept", "here"), newPod("waiting", ""),
			newPod("old", "here", ended), newPod("young", "here", ended, func(p *corev1.Pod) { p.CreationTimestamp = metav1.Now() }))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"kept", "orphan", "waiting", "young"}) {
			t.Errorf("after 30 s there are %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := podNames(t, client); !slices.Equal(got, []string{"kept", "waiting", "young"}) {
			t.Errorf("at last there are %v", got)
		}
	})
}
