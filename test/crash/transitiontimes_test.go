package crash

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestKillRightAfterReady: the agent dies before its memory of the pod is on
// disk, and shows the same transition times afterwards: they are the runtime's. Before,
// they are those at which its calls came back, a moment later: times are in whole seconds, so
// that moment may be one second. The sandbox has the pod's creation time then.
func TestKillRightAfterReady(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	for i := range 8 {
		name := fmt.Sprint("quick-", i)
		n.putPod(n.simple(name))
		n.awaitRunning(name)
		was := n.pods()[name]
		n.kill()
		n.launch()
		n.awaitRunning(name)
		is := n.pods()[name]
		ready := transitionTime(&was, corev1.PodReady)
		for _, b := range was.Status.Conditions {
			old, now, latest := b.LastTransitionTime.Time, transitionTime(&is, b.Type), b.LastTransitionTime.Time
			if b.Type == corev1.PodScheduled || b.Type == corev1.PodInitialized {
				latest = ready
			}
			if now.Before(old.Add(-time.Second)) || now.After(latest.Add(time.Second)) {
				t.Errorf("%s: %s since %s, was since %s, ready since %s", name, b.Type, now, old, ready)
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

// transitionTime is when a condition of the pod became what it is; zero without it.
func transitionTime(p *corev1.Pod, which corev1.PodConditionType) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == which {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
