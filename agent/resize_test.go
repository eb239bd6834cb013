package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestAnEditOfAmountsResizesARunningPod(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.room.SetNode(nodeOf("4", "10"))
		pod := needs("p", "1")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		for generation, cpu := range []string{"3", "8", "2"} {
			pod = pod.DeepCopy()
			pod.Generation = int64(generation + 2)
			pod.Spec.Containers[0].Resources = needs("p", cpu).Spec.Containers[0].Resources
			w.Update(Desired{Pod: pod})
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
