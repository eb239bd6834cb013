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

// TestRecordsLostByContainerdAreCleanedUp deletes containerd's records of berth's pods and of another
// agent's sandbox. The agent removes all resources of its pods from containerd, the host and the network. It
// does not touch the sandbox of the other agent.
func TestRecordsLostByContainerdAreCleanedUp(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}, noStart: true})
			foreign := n.runForeignSandbox()
			foreignResources := n.host.PodResources()
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
			n.must("delete records", n.host.DeleteRecords(t.Context(), ids...))
			n.must("create a lease", n.host.CreateLease(t.Context(), strings.Repeat("0c", 32)))
			n.launch()
			n.awaitRunning("kept")
			n.removeManifest("kept")
			n.waitFor("pods to be deleted", func() bool { return len(n.pods()) == 0 && len(n.sandboxes("kept")) == 0 })
			n.checkForeignIntact(before, foreignResources, foreign)
			n.waitFor("metric berth_leaks_removed_total for the attachment", func() bool {
				return strings.Contains(n.metrics(port), `berth_leaks_removed_total{kind="attachment"} 1`)
			})
			if !strings.Contains(n.metrics(port), `berth_leaks_removed_total{kind="lease"}`) {
				t.Error("metric berth_leaks_removed_total does not count the lease")
			}
			if log := n.agent.Log(); !strings.Contains(log, "leaked object removed") {
				t.Error("no log message for the removed objects")
			}
		})
	}
}

// TestOrphanedShimSocketIsRemoved: the last pod was deleted in an earlier run of the agent, and the socket of
// its shim remains. containerd lists no object for it.
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
	n.must("close without unlinking, like a killed shim", l.Close())
	n.launch()
	n.waitFor("socket to be removed", func() bool { _, err := os.Lstat(socket); return errors.Is(err, fs.ErrNotExist) })
}

// checkForeignIntact waits until only the resources of another agent's sandbox remain. It checks that the
// deleted objects do not run, and that everything the foreign sandbox needs to run is left.
func (n *node) checkForeignIntact(deleted map[string]string, foreignResources []string, id string) {
	n.Helper()
	var extra []string
	if !n.pollUntil(cleanupTimeout, "all resources of berth's pods to be removed", func() bool {
		extra = slices.DeleteFunc(n.host.PodResources(),
			func(l string) bool { return slices.Contains(foreignResources, l) })
		return len(extra) == 0
	}) {
		n.Fatalf("leaked:\n%s", strings.Join(extra, "\n"))
	}
	for id, what := range deleted {
		if _, ok := n.liveObjects("")[id]; ok {
			n.Errorf("%s (%.12s) still runs", what, id)
		}
	}
	current := n.host.PodResources()
	for _, l := range foreignResources {
		if !survivesRecordLoss(l) || slices.Contains(current, l) {
			continue
		}
		n.Errorf("foreign sandbox %.12s: %s was removed", id, l)
	}
	if surviving := slices.DeleteFunc(foreignResources,
		func(l string) bool { return !survivesRecordLoss(l) }); len(surviving) < 8 {
		n.Errorf("foreign sandbox: got resources %v, want at least 8", surviving)
	}
}

// survivesRecordLoss reports whether a resource of a sandbox must remain after containerd has lost its
// record: processes and network. containerd removes directories, mounts and records of unknown sandboxes
// when it starts.
func survivesRecordLoss(resource string) bool {
	kind, what, _ := strings.Cut(resource, " ")
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

// freePort returns a loopback port without a listener.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := hosts.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// metrics returns the metrics page of the agent's health port.
func (n *node) metrics(port int) string {
	n.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	n.must("get metrics", err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	n.must("get metrics", err)
	return string(text)
}
