package crash

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestKilledRightAfterReady: the agent dies before its memory of the pod is on
// disk, and shows the same transition times afterwards: they are the runtime's.
func TestKilledRightAfterReady(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	for i := range 8 {
		name := fmt.Sprint("quick-", i)
		n.putPod(n.simple(name))
		n.awaitRunning(20*time.Second, name)
		was := n.pods()[name]
		n.kill()
		n.launch()
		n.awaitRunning(10*time.Second, name)
		is := n.pods()[name]
		for _, c := range is.Status.Conditions {
			for _, b := range was.Status.Conditions {
				// The pod's first moment is told by its sandbox then, which was made a moment later.
				slack := time.Duration(0)
				if c.Type == corev1.PodScheduled || c.Type == corev1.PodInitialized {
					slack = time.Second
				}
				if d := c.LastTransitionTime.Sub(b.LastTransitionTime.Time).Abs(); b.Type == c.Type && d > slack {
					t.Errorf("%s: %s=%s since %s, was %s since %s", name, c.Type, c.Status, c.LastTransitionTime, b.Status, b.LastTransitionTime)
				}
			}
		}
		n.once(name)
		if t.Failed() {
			return
		}
		n.drop(name)
	}
	n.gone(30 * time.Second)
}
