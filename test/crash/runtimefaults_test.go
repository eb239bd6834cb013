package crash

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/nodeapi"
	"berth/test/hosts"
	"berth/test/images"
)

// shims are the processes that hold a sandbox's containers.
func (n *node) shims(sandbox string) (pids []int) {
	n.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.must("list processes", err)
	for _, f := range all {
		text, _ := os.ReadFile(f)
		if args := strings.Split(string(text), "\x00"); strings.Contains(args[0], "containerd-shim") && strings.Contains(string(text), sandbox) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			n.must("read a process ID", err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestPodRestartsAfterShimKill: its containers have gone with the shim. No
// other pod notices, and nothing of the first sandbox stays.
func TestPodRestartsAfterShimKill(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("struck"))
			n.putPod(n.simple("beside"))
			n.awaitRunning("struck", "beside")
			beside, before := n.liveObjects("beside"), n.liveObjects("struck")
			was := n.sandboxes("struck")[0].Id
			pids := n.shims(was)
			if len(pids) != 1 {
				t.Fatalf("the sandbox %s has the shims %v", was, pids)
			}
			n.must("kill the shim", unix.Kill(pids[0], unix.SIGKILL))
			n.waitFor("the pod to run anew", func() bool {
				p := n.pods()["struck"]
				now := n.liveObjects("struck")
				for id := range before {
					if now[id] != "" {
						return false
					}
				}
				return len(now) == 2 && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready && p.Status.ContainerStatuses[0].RestartCount == 1
			})
			n.checkStillLive(beside)
			n.checkRanOnce("beside")
			n.removeManifest("struck")
			n.removeManifest("beside")
			n.waitNothingLeft()
		})
	}
}

// actionInProgress reports whether berth why says that an action is under way for a pod.
func (n *node) actionInProgress(name, action string) bool {
	why, err := n.client.Why(n.Context(), "default", name)
	return err == nil && slices.ContainsFunc(why.InProgress, func(w nodeapi.Operation) bool { return w.Action == action })
}

// TestHangingCNIPlugin holds up the pod that it is called for and no other,
// over a kill of the agent too, and that pod runs once when it answers.
func TestHangingCNIPlugin(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			release, err := n.host.BlockCNI("held")
			n.must("hold the plugins", err)
			n.putPod(n.simple("held"))
			n.waitFor("the sandbox to be under way", func() bool { return n.actionInProgress("held", "RunSandbox") })
			n.putPod(n.simple("beside"))
			n.awaitRunning("beside")
			n.kill()
			n.launch()
			n.awaitRunning("beside")
			n.waitFor("the sandbox to be under way again", func() bool { return n.actionInProgress("held", "RunSandbox") })
			n.must("let the plugins go", release())
			n.awaitRunning("held")
			n.waitFor("one sandbox to be left", func() bool { return len(n.sandboxes("held")) == 1 })
			n.checkRanOnce("held")
			n.checkRanOnce("beside")
			n.removeManifest("held")
			n.removeManifest("beside")
			n.waitNothingLeft()
		})
	}
}

// TestCorruptRegistry gives bytes that are not what their digest says: nothing
// of them runs, the pod says so, and runs when the registry is honest again.
func TestCorruptRegistry(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			r := newRegistry(t, pulledRef, images.Bash)
			n.must("registry", r.HostsToml(n.host.CertsDir(), "registry.example"))
			r.CorruptBlobs("berth/pulled", true)
			p := n.simple("deceived")
			p.Spec.Containers[0].Image = pulledRef
			p.Spec.Containers[0].Command = []string{"sh", "-c", "echo began >>/witness/deceived.main; sleep 1000"}
			n.putPod(p)
			n.waitFor("the lie to be told", func() bool {
				reason := n.waitingReason("deceived")
				return (reason == "ErrImagePull" || reason == "ImagePullBackOff") && n.waitingMessageContains("deceived", "digest")
			})
			if ran := n.startCount("deceived", "main"); ran != 0 {
				t.Errorf("it ran %d times", ran)
			}
			r.CorruptBlobs("berth/pulled", false)
			n.awaitRunning("deceived")
			n.checkRanOnce("deceived")
			n.removeManifest("deceived")
			n.waitNothingLeft()
		})
	}
}

// TestContainerdUpgrade from 1.6 to 2.x below pods that run: they go on, and
// what is done to them afterwards is done by the new one.
func TestContainerdUpgrade(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.put("rich", n.rich("rich")...)
	n.putPod(n.simple("plain"))
	n.awaitRunning("rich", "plain")
	before := n.liveObjects("")
	n.must("kill containerd", n.host.Kill())
	n.waitFor("its absence to be told", func() bool { return n.waitingMessageContains("plain", "container runtime is down") })
	n.checkOutput([]string{"ps"}, "container runtime is down", "plain", "Running")
	n.must("upgrade containerd", n.host.Upgrade(t.Context(), hosts.Version2))
	n.waitFor("the new one to be noticed", func() bool {
		v, err := n.client.Version(t.Context())
		return err == nil && (strings.Contains(v.Runtime, " 2.") || strings.Contains(v.Runtime, " v2."))
	})
	n.awaitRunning("rich", "plain")
	n.waitFor("its return to be told", func() bool { return !n.waitingMessageContains("plain", "container runtime") })
	n.checkStillLive(before)
	n.checkRanOnce("rich")
	n.checkRanOnce("plain")
	n.must("restart the agent", n.agent.Restart(t.Context()))
	n.awaitRunning("rich", "plain")
	n.checkStillLive(before)
	n.checkOutput([]string{"restart", "plain"})
	n.waitFor("a restart by the new one", func() bool {
		p := n.pods()["plain"]
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	n.putPod(n.simple("late"))
	n.awaitRunning("late")
	n.checkRanOnce("late")
	for _, name := range []string{"rich", "plain", "late"} {
		n.removeManifest(name)
	}
	n.waitNothingLeft()
}
