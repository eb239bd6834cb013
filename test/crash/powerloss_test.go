package crash

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// TestScenario14_PodsRestartOnceAfterPowerLoss: the node loses its power and
// comes back, several times. Pods run again by themselves, init containers
// first; what was over stays over; no address is lost.
func TestScenario14_PodsRestartOnceAfterPowerLoss(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			names := []string{"rich", "one", "two"}
			n.put("rich", n.rich("rich")...)
			n.putPod(n.simple("one"))
			n.putPod(n.simple("two"))
			for name, steps := range map[string][]string{"done": {"exit", "0"}, "failed": {"exit", "7"}, "cut-short": {"sleep"}} {
				p := n.simple(name, steps...)
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
				n.putPod(p)
			}
			n.awaitRunning(append(names, "cut-short")...)
			n.checkExited("done", 0)
			n.checkExited("failed", 7)
			n.must("restart the agent", n.agent.Restart(t.Context())) // so that all is on disk
			for loss := 1; loss <= 3; loss++ {
				n.must("power loss", n.host.PowerLoss())
				began := time.Now()
				if loss%2 == 0 { // the agent comes first
					n.must("agent", n.agent.Start(t.Context()))
				}
				n.must("containerd", n.host.Restart(t.Context()))
				if loss%2 != 0 {
					n.must("agent", n.agent.Start(t.Context()))
				}
				n.waitReady()
				// Before the runtime answers, the agent shows what it last knew.
				n.waitFor("every container to have begun again", func() bool {
					pods := n.pods()
					return !slices.ContainsFunc(names, func(name string) bool {
						p := pods[name]
						ss := statuses(&p)
						return len(ss) == 0 || slices.ContainsFunc(ss, func(s corev1.ContainerStatus) bool { return n.startCount(name, s.Name) <= loss })
					})
				})
				n.awaitRunning(names...)
				took := time.Since(began).Round(time.Millisecond)
				t.Logf("all pods run %s after the power came back", took)
				if took > 15*time.Second {
					t.Error("that is too long")
				}
				for _, name := range names {
					p := n.pods()[name]
					for _, s := range statuses(&p) {
						if ran := n.startCount(name, s.Name); ran != loss+1 {
							t.Errorf("%s/%s ran %d times after %d losses of power", name, s.Name, ran, loss)
						}
						if s.State.Running != nil && s.RestartCount != int32(loss) {
							t.Errorf("%s/%s has %d restarts after %d losses of power", name, s.Name, s.RestartCount, loss)
						}
					}
				}
				n.checkExited("done", 0)
				n.checkExited("failed", 7)
				n.waitFor("the pod that must not restart to have failed", func() bool {
					return n.pods()["cut-short"].Status.Phase == corev1.PodFailed
				})
				if ran := n.startCount("cut-short", "main"); ran != 1 {
					t.Errorf("a pod with restartPolicy Never ran %d times", ran)
				}
				n.waitFor("as many addresses as pods that run", func() bool { return len(n.addresses()) == len(names) })
				if t.Failed() {
					t.Fatalf("after loss %d", loss)
				}
			}
			for _, name := range append(names, "done", "failed", "cut-short") {
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}
