package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// A rejection of the pod as it was before an edit does not apply to the edited pod.
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
			time.Second, "the edited pod runs or is recreated",
			func() bool { return r.isRunning(next)() || r.recreated.Load() > 0 },
		)
	})
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
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
		s := newState()
		s.setDesired(Desired{Pod: hostfake.EditedPod(
			hostfake.FilePod(hostfake.PodRequesting("p", "1")), func(*corev1.Container) {},
		)})
		a := admissionResult{pod: c.pod, Verdict: c.v}
		if a.pod == nil {
			a.pod = s.desired.Pod
		}
		s.applyVerdict(a)
		if s.rejectedBeforeEdit(a) != c.want {
			t.Errorf("%s: got %v, want %v", c.what, !c.want, c.want)
		}
	}
}
