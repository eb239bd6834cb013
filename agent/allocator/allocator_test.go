package allocator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/plan"
)

// testAllocator is an allocator that records all verdicts.
type testAllocator struct {
	*Allocator
	mu       sync.Mutex
	verdicts map[types.UID][]plan.Verdict
}

func runAllocator(t *testing.T, c Config, f func(t *testing.T, l *testAllocator)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &testAllocator{Allocator: New(c), verdicts: map[types.UID][]plan.Verdict{}}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { l.Run(ctx) })
		f(t, l)
		cancel()
		wg.Wait()
		if _, err := l.Snapshot(t.Context()); err == nil {
			t.Error("Snapshot succeeded after Run had returned")
		}
	})
}

func (l *testAllocator) submit(pod *corev1.Pod, admitted bool) {
	l.Submit(Request{Pod: pod, Admitted: admitted, Reply: func(v plan.Verdict) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.verdicts[pod.UID] = append(l.verdicts[pod.UID], v)
	}})
}

// lastVerdict returns the newest verdict on a pod and the number of verdicts.
func (l *testAllocator) lastVerdict(pod *corev1.Pod) (plan.Verdict, int) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.verdicts[pod.UID]
	if len(all) == 0 {
		return plan.Verdict{}, 0
	}
	return all[len(all)-1], len(all)
}

func podWithCPU(name, cpu string) *corev1.Pod {
	pod := podOf(name, "a")
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	return pod
}

func largeNode() admission.Node {
	return nodeOf("1000", "1000")
}

func nodeOf(cpu, pods string) admission.Node {
	return admission.Node{Name: "n", Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Ti"),
		corev1.ResourcePods: resource.MustParse(pods),
	}}
}

func podOf(name string, containers ...string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = name, "default", types.UID("uid-"+name)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for _, c := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers,
			corev1.Container{Name: c, Image: name + "-" + c, ImagePullPolicy: corev1.PullIfNotPresent})
	}
	return pod
}

func TestConcurrentRequestsNeverOvercommit(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("10", "1000"), StartSlots: 1000}, func(t *testing.T, l *testAllocator) {
		var wg sync.WaitGroup
		for i := range 200 {
			pod := podWithCPU(fmt.Sprintf("p%d", i), "300m")
			wg.Go(func() { l.submit(pod, false) })
		}
		wg.Wait()
		ok := func() (ok []types.UID) {
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			for uid, vs := range l.verdicts {
				if vs[len(vs)-1].State == plan.Admitted {
					ok = append(ok, uid)
				}
			}
			return ok
		}
		in := ok()
		if len(in) != 33 {
			t.Fatalf("%d of 33 pods admitted", len(in))
		}
		for _, uid := range in { // the resources of each go to a waiting pod
			wg.Go(func() { l.Release(uid) })
		}
		wg.Wait()
		if n := len(ok()); n != 66 {
			t.Errorf("%d pods admitted after 33 releases", n)
		}
		c, _ := l.Snapshot(t.Context())
		if got := c.Used.Requests[corev1.ResourceCPU]; got.Cmp(resource.MustParse("9900m")) != 0 || c.Admitted != 33 ||
			c.Waiting != 134 {
			t.Errorf("%s used, %+v", got.String(), c)
		}
	})
}

func TestStartSlotsByPriorityThenAge(t *testing.T) {
	runAllocator(t, Config{Node: largeNode(), StartSlots: 1}, func(t *testing.T, l *testAllocator) {
		first := podOf("first", "a")
		l.submit(first, false)
		enter := func(name string, priority int32, age time.Duration) *corev1.Pod {
			pod := podOf(name, "a")
			pod.Spec.Priority = &priority
			pod.CreationTimestamp.Time = time.Now().Add(-age)
			l.submit(pod, false)
			return pod
		}
		young := enter("young", 0, time.Minute)
		old := enter("old", 0, time.Hour)
		high := enter("high", 1000, 0)
		critical := enter("critical", 2000000000, 0)
		turn := []*corev1.Pod{first, critical, high, old, young}
		for i, pod := range turn {
			v, _ := l.lastVerdict(pod)
			if v.State != plan.Admitted {
				t.Fatalf("%s has no start slot: %+v", pod.Name, v)
			}
			for _, next := range turn[i+1:] {
				if v, _ := l.lastVerdict(next); v.State != plan.Wait || v.Reason != "StartQueued" || v.Message == "" {
					t.Errorf("%s: %+v", next.Name, v)
				}
			}
			if i%2 == 0 {
				l.ReleaseStartSlot(pod.UID)
			} else {
				l.Release(pod.UID)
			}
		}
	})
}

// TestAdmittedPodQueuesForStartSlot checks that an admitted pod gets its resources immediately,
// regardless of the node's capacity, and queues for a start slot.
func TestAdmittedPodQueuesForStartSlot(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("1", "10"), StartSlots: 1}, func(t *testing.T, l *testAllocator) {
		turn := func(pod *corev1.Pod) *corev1.Pod {
			l.Submit(Request{Pod: pod, Admitted: true, NeedsStartSlot: true, Reply: func(v plan.Verdict) {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.verdicts[pod.UID] = append(l.verdicts[pod.UID], v)
			}})
			return pod
		}
		first, last, system := turn(podWithCPU("first", "1")), turn(podWithCPU("last", "1")),
			turn(critical(podWithCPU("system", "1")))
		fresh := podWithCPU("fresh", "1")
		l.submit(fresh, false)
		runs := podOf("runs", "a")
		l.submit(runs, true)
		for pod, want := range map[*corev1.Pod]string{first: "", runs: "", last: "StartQueued", system: "StartQueued",
			fresh: "OutOfcpu"} {
			if v, _ := l.lastVerdict(pod); v.Reason != want || (v.State == plan.Admitted) != (want == "") {
				t.Errorf("%s: %+v", pod.Name, v)
			}
		}
		l.ReleaseStartSlot(first.UID)
		if v, _ := l.lastVerdict(system); v.State != plan.Admitted {
			t.Errorf("%+v", v)
		}
		l.Release(system.UID)
		if v, _ := l.lastVerdict(last); v.State != plan.Admitted {
			t.Errorf("%+v", v)
		}
	})
}

func TestStartSlotExpires(t *testing.T) {
	runAllocator(t, Config{Node: largeNode(), StartSlots: 1, StartTimeout: 30 * time.Second},
		func(t *testing.T, l *testAllocator) {
			slow, next := podOf("slow", "a"), podOf("next", "a")
			l.submit(slow, false)
			time.Sleep(10 * time.Second)
			l.submit(next, false)
			time.Sleep(19 * time.Second)
			if v, _ := l.lastVerdict(next); v.State != plan.Wait {
				t.Fatalf("%+v", v)
			}
			time.Sleep(time.Second)
			if v, _ := l.lastVerdict(next); v.State != plan.Admitted {
				t.Errorf("%+v", v)
			}
		})
}

func TestVerdictsSentOnce(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("1000", "101"), StartSlots: 1}, func(t *testing.T, l *testAllocator) {
		var pods []*corev1.Pod
		for i := range 101 {
			pods = append(pods, podOf(fmt.Sprintf("p%03d", i), "a"))
			l.submit(pods[i], false)
		}
		full := podOf("z", "a")
		l.submit(full, false)
		for _, pod := range pods[:100] {
			l.ReleaseStartSlot(pod.UID)
			l.ReleaseStartSlot(pod.UID)
		}
		if v, n := l.lastVerdict(pods[100]); v.State != plan.Admitted || n > 9 {
			t.Errorf("%d verdicts on the last of 101, %+v", n, v)
		}
		if v, n := l.lastVerdict(full); v.Reason != "OutOfpods" || n != 1 {
			t.Errorf("%d verdicts on a pod that does not fit: %+v", n, v)
		}
	})
}

func TestAdmittedPodsNotCheckedAgain(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("1", "10"), StartSlots: 1}, func(t *testing.T, l *testAllocator) {
		in, adopted, other, late := podWithCPU("in", "1"), podWithCPU("adopted", "5"), podWithCPU("other", "1"),
			podWithCPU("late", "100m")
		other.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		l.submit(in, false)
		l.submit(adopted, true) // more than the capacity
		l.submit(other, false)
		if v, _ := l.lastVerdict(adopted); v.State != plan.Admitted {
			t.Errorf("adopted: %+v", v)
		}
		if v, _ := l.lastVerdict(other); v.State != plan.Rejected || !strings.Contains(v.Reason, "Node") {
			t.Fatalf("other: %+v", v)
		}
		shrunk := nodeOf("500m", "2")
		shrunk.Labels = map[string]string{"disk": "ssd"}
		l.SetNode(shrunk)
		l.submit(late, false)
		for pod, want := range map[*corev1.Pod]plan.VerdictState{in: plan.Admitted, adopted: plan.Admitted,
			other: plan.Rejected} {
			if v, n := l.lastVerdict(pod); v.State != want || n != 1 {
				t.Errorf("%s: %+v after %d verdicts", pod.Name, v, n)
			}
		}
		if v, _ := l.lastVerdict(late); v.State == plan.Admitted {
			t.Errorf("late: %+v", v)
		}
		l.SetNode(nodeOf("100", "10")) // waiting pods are checked again
		l.ReleaseStartSlot(in.UID)
		if v, _ := l.lastVerdict(late); v.State != plan.Admitted {
			t.Errorf("late: %+v", v)
		}
	})
}

func TestStartSlotsLimitConcurrentStarts(t *testing.T) {
	runAllocator(t, Config{Node: largeNode(), StartSlots: 4}, func(t *testing.T, l *testAllocator) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		starting, most, done := 0, 0, 0
		for i := range 100 {
			pod := podOf(fmt.Sprint("p", i), "a")
			wg.Go(func() {
				ok := make(chan struct{})
				var once sync.Once
				l.Submit(Request{Pod: pod, Reply: func(v plan.Verdict) {
					if v.State == plan.Admitted {
						once.Do(func() { close(ok) })
					}
				}})
				<-ok
				mu.Lock()
				starting++
				most = max(most, starting)
				mu.Unlock()
				time.Sleep(time.Duration(i) * time.Millisecond)
				mu.Lock()
				starting--
				done++
				mu.Unlock()
				l.ReleaseStartSlot(pod.UID)
			})
		}
		wg.Wait()
		if most != 4 || done != 100 {
			t.Errorf("%d at once, %d done", most, done)
		}
	})
}

func TestPermanentRejectionWins(t *testing.T) {
	wait, never := admission.Rejection{Reason: "OutOfcpu", Message: "m", Recoverable: true},
		admission.Rejection{Reason: "NodeAffinity", Message: "n"}
	for _, refusals := range [][]admission.Rejection{{wait, never}, {never, wait}} {
		if v := verdictOf(slices.Clone(refusals)); v.State != plan.Rejected || v.Reason != "NodeAffinity" {
			t.Errorf("%+v", v)
		}
	}
	if v := verdictOf([]admission.Rejection{wait}); v.State != plan.Wait || v.Reason != "OutOfcpu" || v.Message != "m" {
		t.Errorf("%+v", v)
	}
}

// TestReleasedCallback checks that resources allocated by other packages are released with the pod.
func TestReleasedCallback(t *testing.T) {
	var left []types.UID
	runAllocator(t, Config{Node: nodeOf("4", "1"), StartSlots: 5,
		Released: func(uid types.UID) { left = append(left, uid) }}, func(t *testing.T, l *testAllocator) {
		a, b := podOf("a", "1"), podOf("b", "1")
		l.submit(a, false)
		l.submit(b, false) // rejected
		l.Release(b.UID)
		l.Release(a.UID)
		synctest.Wait()
		if !slices.Equal(left, []types.UID{b.UID, a.UID}) {
			t.Errorf("released %v", left)
		}
	})
}

func TestNodeStateReportsUpdates(t *testing.T) {
	t.Parallel()
	var got []admission.Node
	s := NewNodeState(admission.Node{Name: "n"}, func(n admission.Node) { got = append(got, n) })
	s.SetSupplementalGroupsPolicy(true) // unchanged
	s.Update(func(n *admission.Node) { n.ShuttingDown = true })
	s.SetSupplementalGroupsPolicy(false)
	s.SetSupplementalGroupsPolicy(false) // unchanged
	if len(got) != 2 || got[0].NoSupplementalGroupsPolicy || !got[1].NoSupplementalGroupsPolicy ||
		!got[1].ShuttingDown || got[1].Name != "n" {
		t.Errorf("got updates %+v", got)
	}
}
