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

// shims returns the PIDs of the shims of a sandbox.
func (n *node) shims(sandbox string) (pids []int) {
	n.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.must("list processes", err)
	for _, f := range all {
		text, _ := os.ReadFile(f)
		if args := strings.Split(string(text), "\x00"); strings.Contains(args[0], "containerd-shim") &&
			strings.Contains(string(text), sandbox) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			n.must("read a process ID", err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestPodRestartsAfterShimKill: after its shim is killed, a pod restarts in a new sandbox. Other pods are not
// affected, and no resource of the old sandbox leaks.
func TestPodRestartsAfterShimKill(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("killed"))
			n.putPod(n.simple("other"))
			n.awaitRunning("killed", "other")
			other, before := n.liveObjects("other"), n.liveObjects("killed")
			oldSandbox := n.sandboxes("killed")[0].Id
			pids := n.shims(oldSandbox)
			if len(pids) != 1 {
				t.Fatalf("sandbox %s: got shims %v, want one", oldSandbox, pids)
			}
			n.must("kill the shim", unix.Kill(pids[0], unix.SIGKILL))
			n.waitFor("pod to run in a new sandbox", func() bool {
				p := n.pods()["killed"]
				now := n.liveObjects("killed")
				for id := range before {
					if now[id] != "" {
						return false
					}
				}
				return len(now) == 2 && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready &&
					p.Status.ContainerStatuses[0].RestartCount == 1
			})
			n.checkStillLive(other)
			n.checkRanOnce("other")
			n.removeManifest("killed")
			n.removeManifest("other")
			n.waitNothingLeft()
		})
	}
}

// actionInProgress reports whether `berth why` lists an action of a pod as in progress.
func (n *node) actionInProgress(name, action string) bool {
	why, err := n.client.Why(n.Context(), "default", name)
	return err == nil && slices.ContainsFunc(why.InProgress, func(w nodeapi.Operation) bool {
		return w.Action == action
	})
}

// TestHangingCNIPluginBlocksOnlyItsPod: a hanging CNI plugin blocks its pod and no other, also after the agent is
// killed. The pod starts once when the plugin returns.
func TestHangingCNIPluginBlocksOnlyItsPod(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			release, err := n.host.BlockCNI("blocked")
			n.must("block the CNI plugins", err)
			n.putPod(n.simple("blocked"))
			n.waitFor("RunSandbox to be in progress", func() bool {
				return n.actionInProgress("blocked", "RunSandbox")
			})
			n.putPod(n.simple("other"))
			n.awaitRunning("other")
			n.kill()
			n.launch()
			n.awaitRunning("other")
			n.waitFor("RunSandbox to be in progress again", func() bool {
				return n.actionInProgress("blocked", "RunSandbox")
			})
			n.must("release the CNI plugins", release())
			n.awaitRunning("blocked")
			n.waitFor("one sandbox to remain", func() bool { return len(n.sandboxes("blocked")) == 1 })
			n.checkRanOnce("blocked")
			n.checkRanOnce("other")
			n.removeManifest("blocked")
			n.removeManifest("other")
			n.waitNothingLeft()
		})
	}
}

// TestCorruptBlobIsRejected: a registry serves blobs that do not match their digest. The pod does not start and
// reports the error. It starts when the registry serves the correct blobs.
func TestCorruptBlobIsRejected(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			r := newRegistry(t, pulledRef, images.Bash)
			n.must("configure the registry", r.HostsToml(n.host.CertsDir(), "registry.example"))
			r.CorruptBlobs("berth/pulled", true)
			p := n.simple("corrupt")
			p.Spec.Containers[0].Image = pulledRef
			p.Spec.Containers[0].Command = []string{"sh", "-c", "echo started >>/witness/corrupt.main; sleep 1000"}
			n.putPod(p)
			n.waitFor("pod to report the digest mismatch", func() bool {
				reason := n.waitingReason("corrupt")
				return (reason == "ErrImagePull" || reason == "ImagePullBackOff") &&
					n.waitingMessageContains("corrupt", "digest")
			})
			if ran := n.startCount("corrupt", "main"); ran != 0 {
				t.Errorf("container with a corrupt image: got %d starts, want 0", ran)
			}
			r.CorruptBlobs("berth/pulled", false)
			n.awaitRunning("corrupt")
			n.checkRanOnce("corrupt")
			n.removeManifest("corrupt")
			n.waitNothingLeft()
		})
	}
}

// TestContainerdUpgrade upgrades containerd from 1.6 to 2.x while pods run. The pods continue to run, and the new
// version can restart and delete them.
func TestContainerdUpgrade(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.put("rich", n.rich("rich")...)
	n.putPod(n.simple("plain"))
	n.awaitRunning("rich", "plain")
	before := n.liveObjects("")
	n.must("kill containerd", n.host.Kill())
	n.waitFor("agent to report that the runtime is down", func() bool {
		return n.waitingMessageContains("plain", "container runtime is down")
	})
	n.checkOutput([]string{"ps"}, "container runtime is down", "plain", "Running")
	n.must("upgrade containerd", n.host.Upgrade(t.Context(), hosts.Version2))
	n.waitFor("agent to report the new version", func() bool {
		v, err := n.client.Version(t.Context())
		return err == nil && (strings.Contains(v.Runtime, " 2.") || strings.Contains(v.Runtime, " v2."))
	})
	n.awaitRunning("rich", "plain")
	n.waitFor("agent to report that the runtime is available",
		func() bool { return !n.waitingMessageContains("plain", "container runtime") })
	n.checkStillLive(before)
	n.checkRanOnce("rich")
	n.checkRanOnce("plain")
	n.must("restart the agent", n.agent.Restart(t.Context()))
	n.awaitRunning("rich", "plain")
	n.checkStillLive(before)
	n.checkOutput([]string{"restart", "plain"})
	n.waitFor("container to restart", func() bool {
		p := n.pods()["plain"]
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil &&
			p.Status.ContainerStatuses[0].RestartCount == 1
	})
	n.putPod(n.simple("late"))
	n.awaitRunning("late")
	n.checkRanOnce("late")
	for _, name := range []string{"rich", "plain", "late"} {
		n.removeManifest(name)
	}
	n.waitNothingLeft()
}
