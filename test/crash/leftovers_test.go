package crash

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/test/hosts"
)

// TestRecordsLostByContainerdAreCleanedUp has containerd forget pods of berth and the
// sandbox of another agent. Of berth's nothing is left, in containerd, on the
// host and in the network; the other's, forgotten or not, is as it was.
func TestRecordsLostByContainerdAreCleanedUp(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			foreign := n.runForeignSandbox()
			others := n.host.PodLeftovers()
			port := freePort(t)
			n.startAgent(hosts.AgentOptions{Config: map[string]any{"healthzPort": port}})
			n.putPod(n.simple("lost"))
			n.putPod(n.simple("kept"))
			n.awaitRunning("lost", "kept")
			before := n.liveObjects("kept")
			n.kill()
			n.removeManifest("lost")
			ids := []string{foreign}
			for _, k := range n.containers("lost") {
				ids = append(ids, k.Id)
			}
			for _, s := range n.sandboxes("lost") {
				ids = append(ids, s.Id)
			}
			n.must("forget", n.host.DeleteRecords(t.Context(), ids...))
			n.must("leave a lease", n.host.CreateLease(t.Context(), strings.Repeat("0c", 32)))
			n.launch()
			n.awaitRunning("kept")
			n.removeManifest("kept")
			n.waitFor("the pods to go", func() bool { return len(n.pods()) == 0 && len(n.sandboxes("kept")) == 0 })
			n.checkForeignIntact(before, others, foreign)
			n.waitFor("what was swept to be counted", func() bool {
				return strings.Contains(n.metrics(port), `berth_leftovers_swept_total{kind="attachment"} 1`)
			})
			if !strings.Contains(n.metrics(port), `berth_leftovers_swept_total{kind="lease"}`) {
				t.Error("what became of the lease is not counted")
			}
			if log := n.agent.Log(); !strings.Contains(log, "removed leftover of an interrupted CRI call") {
				t.Error("what was swept is not logged")
			}
		})
	}
}

// TestOrphanedShimSocketIsRemoved: the last pod went in an earlier
// life, and its shim has left its socket, in a directory that no list names.
func TestOrphanedShimSocketIsRemoved(t *testing.T) {
	t.Parallel()
	n := start(t, options{host: hosts.Options{Version: hosts.Version2}})
	n.putPod(n.simple("early"))
	n.awaitRunning("early")
	n.removeManifest("early")
	n.waitNothingLeft()
	n.kill()
	socket := filepath.Join(filepath.Dir(n.host.Socket), "s", strings.Repeat("0d", 32))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	n.must("listen as a shim", err)
	l.SetUnlinkOnClose(false)
	n.must("end as a shim that is killed", l.Close())
	n.launch()
	n.waitFor("the socket to go", func() bool { _, err := os.Lstat(socket); return errors.Is(err, fs.ErrNotExist) })
}

// checkForeignIntact waits until nothing is left but what another agent's sandbox had,
// and looks that this has all that makes it live.
func (n *node) checkForeignIntact(gone map[string]string, others []string, id string) {
	n.Helper()
	var extra []string
	if !n.pollUntil(cleanupTimeout, "nothing of ours to be left", func() bool {
		extra = slices.DeleteFunc(n.host.PodLeftovers(), func(l string) bool { return slices.Contains(others, l) })
		return len(extra) == 0
	}) {
		n.Fatalf("left:\n%s", strings.Join(extra, "\n"))
	}
	for id, what := range gone {
		if _, there := n.liveObjects("")[id]; there {
			n.Errorf("%s, %.12s, still lives", what, id)
		}
	}
	now := n.host.PodLeftovers()
	for _, l := range others {
		if !survivesRecordLoss(l) || slices.Contains(now, l) {
			continue
		}
		n.Errorf("of the other agent's sandbox %.12s this is gone: %s", id, l)
	}
	if alive := slices.DeleteFunc(others, func(l string) bool { return !survivesRecordLoss(l) }); len(alive) < 8 {
		n.Errorf("the other agent's sandbox had only %v", alive)
	}
}

// survivesRecordLoss reports whether what a sandbox has is to outlive that containerd has
// forgotten it: what runs, and its network. containerd itself takes directories,
// mounts and records of what it does not know away when it starts.
func survivesRecordLoss(leftover string) bool {
	kind, what, _ := strings.Cut(leftover, " ")
	switch kind {
	case "process", "address", "rule", "chain", "link", "cgroup":
		return true
	case "mount":
		return strings.Contains(what, "/netns/")
	case "file":
		return strings.Contains(what, "/results/")
	}
	return false
}

// freePort is a port of loopback without a listener.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := hosts.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// metrics is what the agent's health port tells.
func (n *node) metrics(port int) string {
	n.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	n.must("metrics", err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	n.must("metrics", err)
	return string(text)
}
