package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// An edit that comes while the room judges what was there before is not lost with
// that judgement.
func TestRejectionBeforeEditRecreatesPod(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.allocator.SetNode(hostfake.NodeOf("4", "10"))
		pod := hostfake.FilePod(hostfake.PodRequesting("p", "100"))
		w := r.start(pod)
		next := hostfake.EditedPod(
			pod, func(c *corev1.Container) { c.Resources.Requests[corev1.ResourceCPU] = resource.MustParse("1") },
		)
		w.Update(Desired{Pod: next})
		r.until(
			time.Second, "runs, or is recreated",
			func() bool { return r.isRunning(next)() || r.recreated.Load() > 0 },
		)
	})
	for _, c := range []struct {
		what string
		was  *corev1.Pod
		v    plan.Verdict
		want bool
	}{
		{
			"the pod before the edit is rejected", hostfake.FilePod(hostfake.PodRequesting("p", "100")),
			plan.Verdict{State: plan.Rejected}, true,
		},
		{"the edited pod is rejected", nil, plan.Verdict{State: plan.Rejected}, false},
		{
			"the pod before the edit waits", hostfake.FilePod(hostfake.PodRequesting("p", "100")),
			plan.Verdict{State: plan.Wait}, false,
		},
	} {
		b := newState()
		b.setDesired(Desired{Pod: hostfake.EditedPod(
			hostfake.FilePod(hostfake.PodRequesting("p", "1")), func(*corev1.Container) {},
		)})
		a := admissionResult{pod: c.was, Verdict: c.v}
		if a.pod == nil {
			a.pod = b.desired.Pod
		}
		b.applyVerdict(a)
		if b.rejectedBeforeEdit(a) != c.want {
			t.Errorf("%s: %v", c.what, !c.want)
		}
	}
}
