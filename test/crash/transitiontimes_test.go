package crash

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestTransitionTimesSurviveKillAfterReady kills the agent before it has persisted the status of a Ready pod. The
// new agent derives the transition times of the conditions from the runtime. They may be earlier, because the
// killed agent used the times at which its calls returned, but not before the pod was created. Times are in whole
// seconds.
// PodScheduled and PodInitialized may change up to the time at which the pod was Ready.
func TestTransitionTimesSurviveKillAfterReady(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	for i := range 8 {
		name, created := fmt.Sprint("quick-", i), time.Now().Truncate(time.Second)
		n.putPod(n.simple(name))
		n.awaitRunning(name)
		oldPod := n.pods()[name]
		n.kill()
		n.launch()
		n.awaitRunning(name)
		newPod := n.pods()[name]
		ready := transitionTime(&oldPod, corev1.PodReady)
		for _, c := range oldPod.Status.Conditions {
			before, after, latest := c.LastTransitionTime.Time, transitionTime(&newPod, c.Type),
				c.LastTransitionTime.Time
			if c.Type == corev1.PodScheduled || c.Type == corev1.PodInitialized {
				latest = ready
			}
			if after.Before(created) || after.After(latest.Add(time.Second)) {
				t.Errorf("%s: condition %s since %s, want %s; Ready since %s", name, c.Type, after, before, ready)
			}
		}
		n.checkRanOnce(name)
		if t.Failed() {
			return
		}
		n.removeManifest(name)
	}
	n.waitNothingLeft()
}

// transitionTime returns the last transition time of a condition, or the zero time if the condition is missing.
func transitionTime(p *corev1.Pod, which corev1.PodConditionType) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == which {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
