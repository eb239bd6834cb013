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

// crowd is a lobby whose pods can be told to go.
type crowd struct {
	*lobby
	mu   sync.Mutex
	ends map[types.UID][]plan.Termination
}

func inCrowd(t *testing.T, c Config, f func(*testing.T, *crowd)) {
	t.Helper()
	inRoom(t, c, func(t *testing.T, l *lobby) { f(t, &crowd{lobby: l, ends: map[types.UID][]plan.Termination{}}) })
}

func (c *crowd) enter(pod *corev1.Pod, admitted bool) *corev1.Pod {
	c.Submit(Request{
		Pod: pod, Admitted: admitted,
		Reply: func(v plan.Verdict) {
			c.lobby.mu.Lock()
			defer c.lobby.mu.Unlock()
			c.answers[pod.UID] = append(c.answers[pod.UID], v)
		},
		Preempt: func(e plan.Termination) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ends[pod.UID] = append(c.ends[pod.UID], e)
		},
	})
	return pod
}

func (c *crowd) told(t *testing.T, pod *corev1.Pod, times int) {
	t.Helper()
	c.last(pod) // waits until all is quiet
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.ends[pod.UID]
	if len(all) != times {
		t.Errorf("%s was told to go %d times, want %d: %+v", pod.Name, len(all), times, all)
	}
	for _, e := range all {
		if e.Reason != "Preempting" || e.Message != "Preempted in order to admit critical pod" || e.RemovePod || e.Grace != podspec.GracePeriod(pod) {
			t.Errorf("%s was told %+v", pod.Name, e)
		}
	}
}

func critical(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Priority = new(int32(2_000_000_000))
	return pod
}

func TestOthersGoForACriticalPodAndItWaitsForTheirRoom(t *testing.T) {
	inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true}, func(t *testing.T, c *crowd) {
		small, big := c.enter(needs("small", "1"), false), c.enter(needs("big", "3"), false)
		system := c.enter(critical(needs("system", "1")), false)
		c.told(t, small, 1)
		c.told(t, big, 0)
		if v, n := c.last(system); v.State != plan.Wait || v.Reason != "OutOfcpu" || v.Preempts != "default/small" || n != 1 {
			t.Errorf("%d answers, the last %+v", n, v)
		}
		c.enter(system, false) // asking again changes nothing
		c.told(t, small, 1)
		c.MarkTerminating(small.UID)
		c.Release(small.UID)
		c.is(t, system, plan.Admitted, "")
		c.told(t, big, 0)
	})
}

func TestWhatEndsAnywayIsRoomForACriticalPod(t *testing.T) {
	inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true}, func(t *testing.T, c *crowd) {
		a, b := c.enter(needs("a", "2"), false), c.enter(needs("b", "2"), false)
		c.MarkTerminating(a.UID)
		system := c.enter(critical(needs("system", "2")), false)
		if v, _ := c.last(system); v.State != plan.Wait || v.Preempts != "" {
			t.Errorf("%+v", v)
		}
		twin := c.enter(critical(needs("twin", "2")), false) // the room of one is not room for two
		c.told(t, a, 0)
		c.told(t, b, 0)
		c.Release(a.UID)
		c.is(t, system, plan.Admitted, "")
		c.told(t, b, 1)
		c.Release(b.UID)
		c.is(t, twin, plan.Admitted, "")
	})
}

// TestNobodyLesserTakesTheRoomThatIsMade: room for two, of which one is free.
func TestNobodyLesserTakesTheRoomThatIsMade(t *testing.T) {
	for _, server := range []bool{false, true} {
		inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true}, func(t *testing.T, c *crowd) {
			victim := c.enter(needs("victim", "3"), false)
			system := c.enter(critical(needs("system", "3")), false)
			c.told(t, victim, 1)
			thief, fits := needs("thief", "1500m"), needs("fits", "1")
			if server {
				thief, fits = assigned(thief), assigned(fits)
			}
			free := needs("free", "1")
			c.enter(thief, false)
			c.enter(fits, false)
			if v, _ := c.last(fits); v.State != plan.Admitted {
				t.Errorf("there is room for both: %+v", v)
			}
			if v, _ := c.last(thief); server && v.State != plan.Rejected || !server && v.State != plan.Wait {
				t.Errorf("server %v: %+v", server, v)
			}
			grows := free.DeepCopy()
			grows.UID = fits.UID
			grows.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1500m")
			c.Submit(Request{Pod: grows, Resize: true, Reply: func(v plan.Verdict) {
				if v.State == plan.Admitted {
					t.Error("a resize has taken the room")
				}
			}})
			c.Release(victim.UID)
			c.is(t, system, plan.Admitted, "")
		})
	}
}

// TestWhenItGoesItselfTheRoomIsFree: what was kept for it is others' at once.
func TestWhenItGoesItselfTheRoomIsFree(t *testing.T) {
	inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true}, func(t *testing.T, c *crowd) {
		victim := c.enter(needs("victim", "2"), false)
		system := c.enter(critical(needs("system", "3")), false)
		other := c.enter(needs("other", "2"), false)
		c.told(t, victim, 1)
		if v, _ := c.last(other); v.State != plan.Wait {
			t.Errorf("%+v", v)
		}
		c.Release(system.UID)
		c.is(t, other, plan.Admitted, "")
	})
}

func TestOnlyForResourcesAndOnlyForCriticalPods(t *testing.T) {
	inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 10}, func(t *testing.T, c *crowd) { // joined: static pods are critical
		low := c.enter(assigned(needs("low", "3")), false)
		static := needs("static", "1")
		static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
		c.enter(static, false)
		ports := []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: corev1.ProtocolTCP}}
		web := assigned(podOf("web", "a"))
		web.Spec.Containers[0].Ports = ports
		c.enter(web, false)
		web2 := critical(podOf("web2", "a"))
		web2.Spec.Containers[0].Ports = ports
		c.enter(web2, false)
		c.enter(assigned(needs("more", "1")), false)
		for _, pod := range []*corev1.Pod{low, static, web} {
			c.told(t, pod, 0)
		}
		c.enter(critical(assigned(needs("system", "2"))), false)
		c.told(t, low, 1)
		c.told(t, static, 0)
	})
}

// TestWhoWasSeatedBeforeHeCouldBeToldGoesToo: so it is after every restart of the
// agent, which seats the pods that it remembers before their workers ask for them.
func TestWhoWasSeatedBeforeHeCouldBeToldGoesToo(t *testing.T) {
	inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 10, Standalone: true}, func(t *testing.T, c *crowd) {
		stays, goes, ends := needs("stays", "1500m"), needs("goes", "1"), needs("ends", "1500m")
		for _, pod := range []*corev1.Pod{stays, goes, ends} {
			c.Submit(Request{Pod: pod, Admitted: true, Terminating: true, Reply: func(plan.Verdict) {}})
		}
		early := c.enter(critical(needs("early", "500m")), false)
		if v, _ := c.last(early); v.State != plan.Wait || v.Preempts != "" {
			t.Errorf("nobody is known to stay: %+v", v)
		}
		c.enter(stays, true)
		c.enter(goes, true)
		// One that ends anyway is never said to stay in between: nobody goes instead.
		c.Submit(Request{Pod: ends, Admitted: true, Terminating: true, Reply: func(plan.Verdict) {}, Preempt: func(plan.Termination) { t.Error("it ends already") }})
		c.told(t, stays, 0)
		c.told(t, goes, 0)
		c.Release(ends.UID)
		c.is(t, early, plan.Admitted, "")
		late := c.enter(critical(needs("late", "1500m")), false)
		c.told(t, stays, 0)
		c.told(t, goes, 1)
		if v, _ := c.last(late); v.State != plan.Wait || v.Preempts != "default/goes" {
			t.Errorf("%+v", v)
		}
		c.Release(goes.UID)
		c.is(t, late, plan.Admitted, "")
	})
}

// TestAPodThatWaitsForItsTurnMayHaveToGo: it does not start any more.
func TestAPodThatWaitsForItsTurnMayHaveToGo(t *testing.T) {
	inCrowd(t, Config{Node: nodeOf("4", "10"), StartSlots: 1, Standalone: true}, func(t *testing.T, c *crowd) {
		first, queued := c.enter(needs("first", "3"), false), c.enter(needs("queued", "1"), false)
		system := c.enter(critical(needs("system", "1")), false)
		c.told(t, queued, 1)
		c.ReleaseStartSlot(first.UID)
		if v, _ := c.last(queued); v.State == plan.Admitted {
			t.Error("it starts although it has to go")
		}
		c.Release(queued.UID)
		c.is(t, system, plan.Admitted, "")
	})
}

// TestManyCriticalPodsNeverOvercommitAndAllGetIn has them ask at once on a full
// node whose pods take any time to go.
func TestManyCriticalPodsNeverOvercommitAndAllGetIn(t *testing.T) {
	for seed := range uint64(20) {
		inCrowd(t, Config{Node: nodeOf("10", "100"), StartSlots: 100, Standalone: true}, func(t *testing.T, c *crowd) {
			r := rand.New(rand.NewPCG(seed, 7))
			var low, high []*corev1.Pod
			for i := range 30 {
				low = append(low, c.enter(needs(fmt.Sprintf("low%d", i), fmt.Sprintf("%dm", 100+r.IntN(500))), false))
			}
			var wg sync.WaitGroup
			for i := range 9 {
				pod := critical(needs(fmt.Sprintf("high%d", i), "1"))
				high = append(high, pod)
				wg.Go(func() { c.enter(pod, false) })
			}
			wg.Wait()
			for range low { // one after the other goes that was told to
				c.last(high[0])
				census, err := c.Snapshot(t.Context())
				if used := census.Used.Requests[corev1.ResourceCPU]; err != nil || used.Cmp(resource.MustParse("10")) > 0 {
					t.Fatalf("seed %d: %s CPUs are used: %v", seed, used.String(), err)
				}
				if i := slices.IndexFunc(low, func(p *corev1.Pod) bool { return len(c.ends[p.UID]) > 0 }); i >= 0 {
					c.Release(low[i].UID)
					low = slices.Delete(low, i, i+1)
				}
			}
			for _, pod := range high {
				c.is(t, pod, plan.Admitted, "")
				c.told(t, pod, 0)
			}
			var used admission.Used
			for _, pod := range low {
				if v, _ := c.last(pod); v.State == plan.Admitted {
					used.Add(pod)
				}
			}
			if left := used.Requests[corev1.ResourceCPU]; left.Cmp(resource.MustParse("400m")) < 0 { // else too many had to go
				t.Errorf("seed %d: only %s is left to others", seed, left.String())
			}
		})
	}
}
