package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
)

func TestEditOfResourcesResizesRunningPod(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.allocator.SetNode(hostfake.NodeOf("4", "10"))
		pod := hostfake.PodRequesting("p", "1")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		for generation, cpu := range []string{"3", "8", "2"} {
			pod = pod.DeepCopy()
			pod.Generation = int64(generation + 2)
			pod.Spec.Containers[0].Resources = hostfake.PodRequesting("p", cpu).Spec.Containers[0].Resources
			w.Update(Desired{Pod: pod})
			r.until(time.Second, cpu, func() bool {
				s, _ := r.statuses.Get(pod.UID)
				cs := s.Status.ContainerStatuses[0]
				if cpu == "8" {
					return cs.AllocatedResources.Cpu().String() == "3" &&
						s.Status.Conditions[len(s.Status.Conditions)-1].Reason == corev1.PodReasonInfeasible
				}
				return cs.AllocatedResources.Cpu().String() == cpu && cs.Resources.Requests.Cpu().String() == cpu
			})
		}
		r.until(time.Second, "the cgroup is resized", func() bool { return r.reportedCount("ResizeCompleted") == 2 })
		if n := r.host.CallCount("resize"); n != 2 || r.host.CallCount("start uid-p") != 1 ||
			r.reportedCount("ResizeInfeasible") != 1 {
			t.Errorf("got %d container resizes and reasons %+v", n, r.reported)
		}
	})
}
