package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// wants asks for other resources for a pod that is known already.
func (l *lobby) wants(pod *corev1.Pod) {
	l.Ask(seat{pod: pod, resize: true, reply: func(v plan.Verdict) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.answers[pod.UID] = append(l.answers[pod.UID], v)
	}})
}

func TestTheRoomReservesWhatAResizeNeeds(t *testing.T) {
	inRoom(t, RoomConfig{Node: nodeOf("4", "10"), Slots: 1}, func(t *testing.T, l *lobby) {
		is := func(name string, want plan.VerdictState, cpu string) {
			t.Helper()
			if v, _ := l.last(needs(name, "1")); v.State != want {
				t.Errorf("%s: %+v, want %v", name, v, want)
			}
			c, err := l.Census(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if used := c.Used.Requests[corev1.ResourceCPU]; used.String() != cpu {
				t.Errorf("%s of CPU is reserved, want %s", used.String(), cpu)
			}
		}
		l.ask(needs("a", "1"), false)
		is("a", plan.OK, "1")
		l.ask(needs("b", "2"), false) // admitted, waits for its turn to start
		is("b", plan.Wait, "3")
		l.wants(needs("a", "3")) // not now
		is("a", plan.Wait, "3")
		l.wants(needs("a", "5")) // never
		is("a", plan.Rejected, "3")
		l.wants(needs("a", "2"))
		is("a", plan.OK, "4")
		l.wants(needs("b", "1")) // makes room, and no turn is given out for it
		is("b", plan.Wait, "3")
		l.ask(needs("c", "2"), false)
		is("c", plan.Wait, "3")
		l.wants(needs("a", "3")) // it fits exactly
		is("a", plan.OK, "4")
		l.wants(needs("a", "4"))
		is("a", plan.Wait, "4")
		l.Started("uid-a")
		is("b", plan.OK, "4")
		l.Release("uid-b") // the one who was deferred and the one who waits both ask: no more is given than there is
		time.Sleep(time.Second)
		v, _ := l.last(needs("a", "1"))
		w, _ := l.last(needs("c", "1"))
		if v.State != plan.OK || w.State != plan.Wait {
			t.Errorf("a %+v, c %+v", v, w)
		}
		l.Release("uid-a")
		is("c", plan.OK, "2")
		l.wants(needs("d", "1")) // nobody knows it
		is("d", 0, "2")
	})
}

func TestAnEditOfAmountsResizesARunningPod(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.room.node = nodeOf("4", "10")
		pod := needs("p", "1")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		for generation, cpu := range []string{"3", "8", "2"} {
			pod = pod.DeepCopy()
			pod.Generation = int64(generation + 2)
			pod.Spec.Containers[0].Resources = needs("p", cpu).Spec.Containers[0].Resources
			w.Want(Wish{Pod: pod})
			r.until(time.Second, cpu, func() bool {
				s, _ := r.board.Get(pod.UID)
				has := s.Status.ContainerStatuses[0]
				if cpu == "8" {
					return has.AllocatedResources.Cpu().String() == "3" && s.Status.Conditions[len(s.Status.Conditions)-1].Reason == corev1.PodReasonInfeasible
				}
				return has.AllocatedResources.Cpu().String() == cpu && has.Resources.Requests.Cpu().String() == cpu
			})
		}
		r.until(time.Second, "the cgroup to follow", func() bool { return r.toldOf("ResizeCompleted") == 2 })
		if n := r.h.happened("resize"); n != 2 || r.h.happened("start uid-p") != 1 || r.toldOf("ResizeInfeasible") != 1 {
			t.Errorf("%d resizes, told %+v", n, r.told)
		}
	})
}
