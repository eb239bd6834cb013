package allocator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"berth/admission"
	"berth/agent/plan"
	"berth/podspec"
)

// preemptionTest is a testAllocator with preemptible pods.
type preemptionTest struct {
	*testAllocator
	mu           sync.Mutex
	terminations map[types.UID][]plan.Termination
}

func runPreemptionTest(t *testing.T, c Config, f func(*testing.T, *preemptionTest)) {
	t.Helper()
	runAllocator(t, c, func(t *testing.T, l *testAllocator) {
		f(t, &preemptionTest{testAllocator: l, terminations: map[types.UID][]plan.Termination{}})
	})
}

func (c *preemptionTest) submitPreemptible(pod *corev1.Pod, admitted bool) *corev1.Pod {
	c.Submit(Request{
		Pod: pod, Admitted: admitted,
		Reply: func(v plan.Verdict) {
			c.testAllocator.mu.Lock()
			defer c.testAllocator.mu.Unlock()
			c.verdicts[pod.UID] = append(c.verdicts[pod.UID], v)
		},
		Preempt: func(e plan.Termination) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.terminations[pod.UID] = append(c.terminations[pod.UID], e)
		},
	})
	return pod
}

func (c *preemptionTest) expectPreempted(t *testing.T, pod *corev1.Pod, times int) {
	t.Helper()
	c.lastVerdict(pod) // waits until the allocator is idle
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.terminations[pod.UID]
	if len(all) != times {
		t.Errorf("%s was preempted %d times, want %d: %+v", pod.Name, len(all), times, all)
	}
	for _, e := range all {
		if e.Reason != "Preempting" || e.Message != "Preempted in order to admit critical pod" || e.RemovePod ||
			e.Grace != podspec.GracePeriod(pod) {
			t.Errorf("%s was terminated with %+v", pod.Name, e)
		}
	}
}

func critical(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Priority = new(int32(2_000_000_000))
	return pod
}

func TestCriticalPodPreemptsAndWaits(t *testing.T) {
	runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true},
		func(t *testing.T, c *preemptionTest) {
			small, big := c.submitPreemptible(podWithCPU("small", "1"), false),
				c.submitPreemptible(podWithCPU("big", "3"), false)
			system := c.submitPreemptible(critical(podWithCPU("system", "1")), false)
			c.expectPreempted(t, small, 1)
			c.expectPreempted(t, big, 0)
			if v, n := c.lastVerdict(system); v.State != plan.Wait || v.Reason != "OutOfcpu" ||
				v.Preempts != "default/small" ||
				n != 1 {
				t.Errorf("%d verdicts, the last %+v", n, v)
			}
			c.submitPreemptible(system, false) // a repeated request changes nothing
			c.expectPreempted(t, small, 1)
			c.MarkTerminating(small.UID)
			c.Release(small.UID)
			c.expectVerdict(t, system, plan.Admitted, "")
			c.expectPreempted(t, big, 0)
		})
}

func TestTerminatingPodsAvoidPreemption(t *testing.T) {
	runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true},
		func(t *testing.T, c *preemptionTest) {
			a, b := c.submitPreemptible(podWithCPU("a", "2"), false), c.submitPreemptible(podWithCPU("b", "2"), false)
			c.MarkTerminating(a.UID)
			system := c.submitPreemptible(critical(podWithCPU("system", "2")), false)
			if v, _ := c.lastVerdict(system); v.State != plan.Wait || v.Preempts != "" {
				t.Errorf("%+v", v)
			}
			// the released resources suffice for one of the pods
			twin := c.submitPreemptible(critical(podWithCPU("twin", "2")), false)
			c.expectPreempted(t, a, 0)
			c.expectPreempted(t, b, 0)
			c.Release(a.UID)
			c.expectVerdict(t, system, plan.Admitted, "")
			c.expectPreempted(t, b, 1)
			c.Release(b.UID)
			c.expectVerdict(t, twin, plan.Admitted, "")
		})
}

// TestPreemptedResourcesReservedForCriticalPod uses a node with room for one of two pods.
func TestPreemptedResourcesReservedForCriticalPod(t *testing.T) {
	for _, server := range []bool{false, true} {
		runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true},
			func(t *testing.T, c *preemptionTest) {
				victim := c.submitPreemptible(podWithCPU("victim", "3"), false)
				system := c.submitPreemptible(critical(podWithCPU("system", "3")), false)
				c.expectPreempted(t, victim, 1)
				tooBig, fits := podWithCPU("too-big", "1500m"), podWithCPU("fits", "1")
				if server {
					tooBig, fits = fromAPIServer(tooBig), fromAPIServer(fits)
				}
				free := podWithCPU("free", "1")
				c.submitPreemptible(tooBig, false)
				c.submitPreemptible(fits, false)
				if v, _ := c.lastVerdict(fits); v.State != plan.Admitted {
					t.Errorf("a pod that fits was not admitted: %+v", v)
				}
				if v, _ := c.lastVerdict(tooBig); server && v.State != plan.Rejected || !server &&
					v.State != plan.Wait {
					t.Errorf("server %v: %+v", server, v)
				}
				grows := free.DeepCopy()
				grows.UID = fits.UID
				grows.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1500m")
				c.Submit(Request{Pod: grows, Resize: true, Reply: func(v plan.Verdict) {
					if v.State == plan.Admitted {
						t.Error("a resize took reserved resources")
					}
				}})
				c.Release(victim.UID)
				c.expectVerdict(t, system, plan.Admitted, "")
			})
	}
}

// TestReservationEndsWithCriticalPod checks that reserved resources become available when the
// critical pod is deleted.
func TestReservationEndsWithCriticalPod(t *testing.T) {
	runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true},
		func(t *testing.T, c *preemptionTest) {
			victim := c.submitPreemptible(podWithCPU("victim", "2"), false)
			system := c.submitPreemptible(critical(podWithCPU("system", "3")), false)
			other := c.submitPreemptible(podWithCPU("other", "2"), false)
			c.expectPreempted(t, victim, 1)
			if v, _ := c.lastVerdict(other); v.State != plan.Wait {
				t.Errorf("%+v", v)
			}
			c.Release(system.UID)
			c.expectVerdict(t, other, plan.Admitted, "")
		})
}

func TestPreemptionOnlyForResourcesAndCriticalPods(t *testing.T) {
	runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, c *preemptionTest) {
		// joined to a cluster, where static pods are critical
		low := c.submitPreemptible(fromAPIServer(podWithCPU("low", "3")), false)
		static := podWithCPU("static", "1")
		static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		c.submitPreemptible(static, false)
		ports := []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
		web := fromAPIServer(podOf("web", "a"))
		web.Spec.Containers[0].Ports = ports
		c.submitPreemptible(web, false)
		web2 := critical(podOf("web2", "a"))
		web2.Spec.Containers[0].Ports = ports
		c.submitPreemptible(web2, false)
		c.submitPreemptible(fromAPIServer(podWithCPU("more", "1")), false)
		for _, pod := range []*corev1.Pod{low, static, web} {
			c.expectPreempted(t, pod, 0)
		}
		c.submitPreemptible(critical(fromAPIServer(podWithCPU("system", "2"))), false)
		c.expectPreempted(t, low, 1)
		c.expectPreempted(t, static, 0)
	})
}

// TestRestoredPodsArePreemptible covers a restart of the agent, which registers the restored pods
// before their workers submit requests.
func TestRestoredPodsArePreemptible(t *testing.T) {
	runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true},
		func(t *testing.T, c *preemptionTest) {
			stays, goes, ends := podWithCPU("stays", "1500m"), podWithCPU("goes", "1"), podWithCPU("ends", "1500m")
			for _, pod := range []*corev1.Pod{stays, goes, ends} {
				c.Submit(Request{Pod: pod, Admitted: true, Terminating: true, Reply: func(plan.Verdict) {}})
			}
			early := c.submitPreemptible(critical(podWithCPU("early", "500m")), false)
			if v, _ := c.lastVerdict(early); v.State != plan.Wait || v.Preempts != "" {
				t.Errorf("no pod can be preempted yet: %+v", v)
			}
			c.submitPreemptible(stays, true)
			c.submitPreemptible(goes, true)
			// A terminating pod never counts as remaining, so no other pod is preempted.
			c.Submit(Request{Pod: ends, Admitted: true, Terminating: true, Reply: func(plan.Verdict) {},
				Preempt: func(plan.Termination) { t.Error("a terminating pod was preempted") }})
			c.expectPreempted(t, stays, 0)
			c.expectPreempted(t, goes, 0)
			c.Release(ends.UID)
			c.expectVerdict(t, early, plan.Admitted, "")
			late := c.submitPreemptible(critical(podWithCPU("late", "1500m")), false)
			c.expectPreempted(t, stays, 0)
			c.expectPreempted(t, goes, 1)
			if v, _ := c.lastVerdict(late); v.State != plan.Wait || v.Preempts != "default/goes" {
				t.Errorf("%+v", v)
			}
			c.Release(goes.UID)
			c.expectVerdict(t, late, plan.Admitted, "")
		})
}

// TestQueuedPodIsPreemptible checks that a preempted pod in the queue does not start.
func TestQueuedPodIsPreemptible(t *testing.T) {
	runPreemptionTest(t, Config{Node: nodeOf("4", "10"), StartSlots: 1, Standalone: true},
		func(t *testing.T, c *preemptionTest) {
			first, queued := c.submitPreemptible(podWithCPU("first", "3"), false),
				c.submitPreemptible(podWithCPU("queued", "1"), false)
			system := c.submitPreemptible(critical(podWithCPU("system", "1")), false)
			c.expectPreempted(t, queued, 1)
			c.ReleaseStartSlot(first.UID)
			if v, _ := c.lastVerdict(queued); v.State == plan.Admitted {
				t.Error("a preempted pod started")
			}
			c.Release(queued.UID)
			c.expectVerdict(t, system, plan.Admitted, "")
		})
}

// TestConcurrentCriticalPodsNeverOvercommit submits critical pods concurrently on a full node whose
// pods terminate one by one.
func TestConcurrentCriticalPodsNeverOvercommit(t *testing.T) {
	for seed := range uint64(20) {
		runPreemptionTest(t, Config{Node: nodeOf("10", "100"), StartSlots: 100, Standalone: true},
			func(t *testing.T, c *preemptionTest) {
				r := rand.New(rand.NewPCG(seed, 7))
				var low, high []*corev1.Pod
				for i := range 30 {
					low = append(low,
						c.submitPreemptible(podWithCPU(fmt.Sprintf("low%d", i), fmt.Sprintf("%dm", 100+r.IntN(500))),
							false))
				}
				var wg sync.WaitGroup
				for i := range 9 {
					pod := critical(podWithCPU(fmt.Sprintf("high%d", i), "1"))
					high = append(high, pod)
					wg.Go(func() { c.submitPreemptible(pod, false) })
				}
				wg.Wait()
				for range low { // the preempted pods terminate one after the other
					c.lastVerdict(high[0])
					snapshot, err := c.Snapshot(t.Context())
					if used := snapshot.Used.Requests[corev1.ResourceCPU]; err != nil ||
						used.Cmp(resource.MustParse("10")) > 0 {
						t.Fatalf("seed %d: %s CPUs used: %v", seed, used.String(), err)
					}
					if i := slices.IndexFunc(low, func(p *corev1.Pod) bool {
						return len(c.terminations[p.UID]) > 0
					}); i >= 0 {
						c.Release(low[i].UID)
						low = slices.Delete(low, i, i+1)
					}
				}
				for _, pod := range high {
					c.expectVerdict(t, pod, plan.Admitted, "")
					c.expectPreempted(t, pod, 0)
				}
				var used admission.Used
				for _, pod := range low {
					if v, _ := c.lastVerdict(pod); v.State == plan.Admitted {
						used.Add(pod)
					}
				}
				if left := used.Requests[corev1.ResourceCPU]; left.Cmp(resource.MustParse("400m")) < 0 {
					// otherwise too many were preempted
					t.Errorf("seed %d: only %s CPUs remain for other pods", seed, left.String())
				}
			})
	}
}
