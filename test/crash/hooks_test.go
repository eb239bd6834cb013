package crash

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// TestKillDuringHooks kills the agent in the middle of each hook: the hook is run
// again, the container is not, and no pod is left half started or half ended.
func TestKillDuringHooks(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			p := n.simple("hooked")
			p.Spec.TerminationGracePeriodSeconds = new(int64(60))
			hook := func(name string) *corev1.LifecycleHandler {
				return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{
					"/bin/testbox", "append", "/witness/hooked." + name, "began", ",", "await", "/witness/go-" + name}}}
			}
			c := &p.Spec.Containers[0]
			c.Args = append(c.Args[:4:4], "follow", "/witness/none") // ends at TERM
			c.Lifecycle = &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")}
			p.Spec.Containers = append(p.Spec.Containers, n.witnessed("hooked", "second", "sleep"))
			n.putPod(p)
			n.killDuringHook("postStart")
			if ran := n.startCount("hooked", "second"); ran != 0 {
				t.Errorf("the second container ran %d times before the hook of the first had ended", ran)
			}
			n.releaseHook("postStart")
			n.awaitRunning("hooked")
			n.checkRanOnce("hooked")

			n.removeManifest("hooked")
			n.killDuringHook("preStop")
			n.releaseHook("preStop")
			n.waitNothingLeft()
			if ran := n.startCount("hooked", "main"); ran != 1 {
				t.Errorf("the container ran %d times", ran)
			}
		})
	}
}

// killDuringHook kills the agent while a hook runs, and waits until the next one
// has started it again.
func (n *node) killDuringHook(hook string) {
	n.Helper()
	n.waitFor(hook+" to begin", func() bool { return n.startCount("hooked", hook) == 1 })
	n.kill()
	n.launch()
	n.waitFor(hook+" to be run again", func() bool { return n.startCount("hooked", hook) == 2 })
}

// releaseHook lets a hook end.
func (n *node) releaseHook(hook string) {
	n.Helper()
	n.must("go on", os.WriteFile(n.witness+"/go-"+hook, nil, 0o644))
}
