package crash

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// TestScenario14_PodsRestartOnceAfterPowerLoss: after each of several power losses, pods restart once, init
// containers first. Finished pods do not restart, and no address leaks.
func TestScenario14_PodsRestartOnceAfterPowerLoss(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			names := []string{"rich", "one", "two"}
			n.put("rich", n.rich("rich")...)
			n.putPod(n.simple("one"))
			n.putPod(n.simple("two"))
			for name, steps := range map[string][]string{"done": {"exit", "0"}, "failed": {"exit", "7"},
				"cut-short": {"sleep"}} {
				p := n.simple(name, steps...)
				p.Spec.RestartPolicy = corev1.RestartPolicyNever
				n.putPod(p)
			}
			n.awaitRunning(append(names, "cut-short")...)
			n.checkExited("done", 0)
			n.checkExited("failed", 7)
			n.must("restart the agent", n.agent.Restart(t.Context())) // writes its state to disk
			for loss := 1; loss <= 3; loss++ {
				n.must("power loss", n.host.PowerLoss())
				startTime := time.Now()
				if loss%2 == 0 { // the agent starts first
					n.must("start the agent", n.agent.Start(t.Context()))
				}
				n.must("restart containerd", n.host.Restart(t.Context()))
				if loss%2 != 0 {
					n.must("start the agent", n.agent.Start(t.Context()))
				}
				n.waitReady()
				// Before the runtime responds, the agent reports the status that it has persisted.
				n.waitFor("all containers to restart", func() bool {
					pods := n.pods()
					return !slices.ContainsFunc(names, func(name string) bool {
						p := pods[name]
						ss := statuses(&p)
						return len(ss) == 0 || slices.ContainsFunc(ss, func(s corev1.ContainerStatus) bool {
							return n.startCount(name, s.Name) <= loss
						})
					})
				})
				n.awaitRunning(names...)
				t.Logf("all pods were Ready %s after the power loss", time.Since(startTime).Round(time.Millisecond))
				for _, name := range names {
					p := n.pods()[name]
					for _, s := range statuses(&p) {
						if ran := n.startCount(name, s.Name); ran != loss+1 {
							t.Errorf("%s/%s: got %d starts after %d power losses", name, s.Name, ran, loss)
						}
						if s.State.Running != nil && s.RestartCount != int32(loss) {
							t.Errorf("%s/%s: restart count %d after %d power losses", name, s.Name, s.RestartCount,
								loss)
						}
					}
				}
				n.checkExited("done", 0)
				n.checkExited("failed", 7)
				n.waitFor("pod with restartPolicy Never to fail", func() bool {
					return n.pods()["cut-short"].Status.Phase == corev1.PodFailed
				})
				if ran := n.startCount("cut-short", "main"); ran != 1 {
					t.Errorf("pod with restartPolicy Never: got %d starts, want 1", ran)
				}
				n.waitFor("one address per running pod", func() bool { return len(n.addresses()) == len(names) })
				if t.Failed() {
					t.Fatalf("after power loss %d", loss)
				}
			}
			for _, name := range append(names, "done", "failed", "cut-short") {
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}
