package allocator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// submitResize requests other resources for a known pod.
func (l *testAllocator) submitResize(pod *corev1.Pod) {
	l.Submit(Request{Pod: pod, Resize: true, Reply: func(v plan.Verdict) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.verdicts[pod.UID] = append(l.verdicts[pod.UID], v)
	}})
}

func TestResizeReservesResources(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("4", "10"), StartSlots: 1}, func(t *testing.T, l *testAllocator) {
		is := func(name string, want plan.VerdictState, cpu string) {
			t.Helper()
			if v, _ := l.lastVerdict(podWithCPU(name, "1")); v.State != want {
				t.Errorf("%s: %+v, want %v", name, v, want)
			}
			c, err := l.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if used := c.Used.Requests[corev1.ResourceCPU]; used.String() != cpu {
				t.Errorf("%s CPUs reserved, want %s", used.String(), cpu)
			}
		}
		l.submit(podWithCPU("a", "1"), false)
		is("a", plan.Admitted, "1")
		l.submit(podWithCPU("b", "2"), false) // admitted and queued for a start slot
		is("b", plan.Wait, "3")
		l.submitResize(podWithCPU("a", "3")) // does not fit now
		is("a", plan.Wait, "3")
		l.submitResize(podWithCPU("a", "5")) // never fits
		is("a", plan.Rejected, "3")
		if v, _ := l.lastVerdict(podWithCPU("a",
			"1")); v.Message != "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000" {
			t.Errorf("resize above the capacity: %s", v.Message)
		}
		l.submitResize(podWithCPU("a", "2"))
		is("a", plan.Admitted, "4")
		l.submitResize(podWithCPU("b", "1")) // releases resources but not the start slot
		is("b", plan.Wait, "3")
		l.submit(podWithCPU("c", "2"), false)
		is("c", plan.Wait, "3")
		l.submitResize(podWithCPU("a", "3")) // fits exactly
		is("a", plan.Admitted, "4")
		l.submitResize(podWithCPU("a", "4"))
		is("a", plan.Wait, "4")
		l.ReleaseStartSlot("uid-a")
		is("b", plan.Admitted, "4")
		l.Release("uid-b") // the deferred and the waiting pod compete for the resources
		time.Sleep(time.Second)
		v, _ := l.lastVerdict(podWithCPU("a", "1"))
		w, _ := l.lastVerdict(podWithCPU("c", "1"))
		if v.State != plan.Admitted || w.State != plan.Wait {
			t.Errorf("a %+v, c %+v", v, w)
		}
		l.Release("uid-a")
		is("c", plan.Admitted, "2")
		l.submitResize(podWithCPU("d", "1")) // unknown pod
		is("d", 0, "2")
	})
}

// TestDeferredResizesGrantedInOrder releases resources step by step for four deferred resizes.
func TestDeferredResizesGrantedInOrder(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("8", "10"), StartSlots: 9}, func(t *testing.T, l *testAllocator) {
		podWith := func(name, cpu string) *corev1.Pod {
			pod := podWithCPU(name, cpu)
			if c := &pod.Spec.Containers[0]; name == "guaranteed" {
				c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Mi")
				c.Resources.Limits = c.Resources.Requests.DeepCopy()
			}
			if name == "important" {
				pod.Spec.Priority = new(int32(1000))
			}
			return pod
		}
		order := []string{"important", "guaranteed", "early", "late"}
		for i := range 4 {
			l.submit(podWithCPU(fmt.Sprint("full", i), "1"), true)
		}
		for _, name := range order {
			l.submit(podWith(name, "1"), true)
		}
		synctest.Wait()
		for _, name := range []string{"early", "late", "guaranteed", "important"} {
			l.submitResize(podWith(name, "2"))
			time.Sleep(time.Second)
		}
		l.submitResize(podWith("early", "2")) // a repeated request keeps its position
		for i, next := range order {
			l.Release(types.UID(fmt.Sprint("uid-full", i)))
			for j, name := range order {
				want := plan.Wait
				if j <= i {
					want = plan.Admitted
				}
				if v, _ := l.lastVerdict(podWithCPU(name, "1")); v.State != want {
					t.Errorf("after the release for %s, %s has %+v", next, name, v)
				}
			}
		}
	})
}

// TestDeferredResizeDoesNotBlockOthers checks that resources go to the first deferred resize that
// fits.
func TestDeferredResizeDoesNotBlockOthers(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("8", "10"), StartSlots: 9}, func(t *testing.T, l *testAllocator) {
		podWith := func(name, cpu string) *corev1.Pod {
			pod := podWithCPU(name, cpu)
			if name == "important" {
				pod.Spec.Priority = new(int32(1000))
			}
			return pod
		}
		for name, cpu := range map[string]string{"full": "2", "fuller": "4", "important": "1", "small": "1"} {
			l.submit(podWith(name, cpu), true)
		}
		synctest.Wait()
		is := func(when string, important, small plan.VerdictState) {
			t.Helper()
			for name, want := range map[string]plan.VerdictState{"important": important, "small": small} {
				if v, _ := l.lastVerdict(podWithCPU(name, "1")); v.State != want {
					t.Errorf("%s: %s has %+v", when, name, v)
				}
			}
		}
		l.submitResize(podWith("important", "4"))
		l.submitResize(podWith("small", "2"))
		is("full node", plan.Wait, plan.Wait)
		l.Release("uid-full")
		is("two free CPUs", plan.Wait, plan.Admitted)
		l.Release("uid-fuller")
		is("five free CPUs", plan.Admitted, plan.Admitted)
	})
}

// TestMemoryResizeWithSwapInfeasible checks that such a resize requires a restart.
func TestMemoryResizeWithSwapInfeasible(t *testing.T) {
	node := nodeOf("8", "10")
	node.LimitedSwap = true
	node.Allocatable[corev1.ResourceMemory] = resource.MustParse("1Gi")
	runAllocator(t, Config{Node: node, StartSlots: 9}, func(t *testing.T, l *testAllocator) {
		podWith := func(name, memory string) *corev1.Pod {
			pod := podWithCPU(name, "1")
			c := &pod.Spec.Containers[0]
			c.Resources.Requests[corev1.ResourceMemory] = resource.MustParse(memory)
			if name == "restarts" {
				c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: corev1.ResourceMemory,
					RestartPolicy: corev1.RestartContainer}}
			}
			return pod
		}
		for name, want := range map[string]plan.VerdictState{"stays": plan.Rejected, "restarts": plan.Admitted} {
			l.submit(podWith(name, "1Mi"), true)
			synctest.Wait()
			l.submitResize(podWith(name, "2Mi"))
			if v, _ := l.lastVerdict(podWithCPU(name, "1")); v.State != want ||
				(want == plan.Admitted) != (v.Message == "") {
				t.Errorf("%s: %+v, want %v", name, v, want)
			}
		}
	})
}

func TestResizeCannotRemoveResources(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("4", "10"), StartSlots: 1}, func(t *testing.T, l *testAllocator) {
		bare := podWithCPU("a", "1")
		bare.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
		more := podWithCPU("a", "2")
		more.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		l.submit(podWithCPU("a", "1"), false)
		for _, c := range []struct {
			pod  *corev1.Pod
			want plan.VerdictState
			cpu  string
		}{{bare, plan.Rejected, "1"}, {more, plan.Admitted, "2"}, {podWithCPU("a", "2"), plan.Rejected, "2"}} {
			l.submitResize(c.pod)
			snapshot, err := l.Snapshot(t.Context())
			if v, _ := l.lastVerdict(c.pod); err != nil || v.State != c.want || v.State == plan.Rejected &&
				v.Message == "" {
				t.Errorf("%+v %v, want %v", v, err, c.want)
			}
			if used := snapshot.Used.Requests[corev1.ResourceCPU]; used.String() != c.cpu {
				t.Errorf("%s CPUs reserved, want %s", used.String(), c.cpu)
			}
		}
	})
}

// TestSnapshotCheckResize checks the verdicts of a snapshot on a resize and a replacement, which do
// not change the state.
func TestSnapshotCheckResize(t *testing.T) {
	runAllocator(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, l *testAllocator) {
		p, q := podWithCPU("p", "1"), podWithCPU("q", "2")
		l.submit(p, false)
		l.submit(q, false)
		l.lastVerdict(q)
		c, err := l.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for cpu, want := range map[string]plan.VerdictState{"2": plan.Admitted, "3": plan.Wait, "5": plan.Rejected} {
			if v := c.CheckResize(p, podWithCPU("p", cpu)); v.State != want {
				t.Errorf("to %s: %+v", cpu, v)
			}
		}
		if v := c.CheckResize(p, podWithCPU("p",
			"5")); v.Message != "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000" {
			t.Errorf("to resize above the capacity: %s", v.Message)
		}
		if v := c.CheckResize(p, podOf("p", "a")); v.State != plan.Rejected {
			t.Errorf("removal: %+v", v)
		}
		if c.Rejection(podWithCPU("r", "2")) == "" || c.Without(p).Rejection(podWithCPU("r", "2")) != "" ||
			c.Rejection(podWithCPU("r", "2")) == "" {
			t.Error("the resources of the replaced pod count wrongly")
		}
	})
}
