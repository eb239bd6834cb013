package crash

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// TestKillDuringHooks kills the agent during each hook. The agent runs the hook again and does not restart
// the container. The pod starts and terminates completely.
func TestKillDuringHooks(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			p := n.simple("hooked")
			p.Spec.TerminationGracePeriodSeconds = new(int64(60))
			hook := func(name string) *corev1.LifecycleHandler {
				return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{
					"/bin/testbox", "append", "/witness/hooked." + name, "started", ",", "await",
					"/witness/go-" + name}}}
			}
			c := &p.Spec.Containers[0]
			c.Args = append(c.Args[:4:4], "follow", "/witness/none") // exits on SIGTERM
			c.Lifecycle = &corev1.Lifecycle{PostStart: hook("postStart"), PreStop: hook("preStop")}
			p.Spec.Containers = append(p.Spec.Containers, n.witnessed("hooked", "second", "sleep"))
			n.putPod(p)
			n.killDuringHook("postStart")
			if ran := n.startCount("hooked", "second"); ran != 0 {
				t.Errorf("container second started %d times before the PostStart hook of main had finished", ran)
			}
			n.releaseHook("postStart")
			n.awaitRunning("hooked")
			n.checkRanOnce("hooked")

			n.removeManifest("hooked")
			n.killDuringHook("preStop")
			n.releaseHook("preStop")
			n.waitNothingLeft()
			if ran := n.startCount("hooked", "main"); ran != 1 {
				t.Errorf("container main: got %d starts, want 1", ran)
			}
		})
	}
}

// killDuringHook kills the agent while a hook runs, restarts it, and waits until it has started the hook
// again.
func (n *node) killDuringHook(hook string) {
	n.Helper()
	n.waitFor(hook+" hook to start", func() bool { return n.startCount("hooked", hook) == 1 })
	n.kill()
	n.launch()
	n.waitFor(hook+" hook to start again", func() bool { return n.startCount("hooked", hook) == 2 })
}

// releaseHook lets a hook finish.
func (n *node) releaseHook(hook string) {
	n.Helper()
	n.must("release the hook", os.WriteFile(n.witness+"/go-"+hook, nil, 0o644))
}
