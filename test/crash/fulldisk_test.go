package crash

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth/test/hosts"
)

// smallDisk mounts a small disk of its own for the length of the test.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The host may have taken it away with the agent's directories.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return dir
}

// fill writes until the disk is full; the file that it returns is the ballast.
func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int64{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = io.CopyN(f, zeroReader{}, size)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	return f.Name()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestScenario20_StateDiskFull: pods come, go and survive; what cannot be
// written is kept in memory, said, and written when there is room again.
func TestScenario20_StateDiskFull(t *testing.T) {
	t.Parallel()
	state := smallDisk(t, "1m")
	n := start(t, options{agent: hosts.AgentOptions{StateDir: state}})
	n.putPod(n.simple("before"))
	n.awaitRunning("before")
	before := n.liveObjects("")
	ballast := fill(t, state)
	// More than the space that the store has in reserve.
	for _, name := range []string{"full-1", "full-2", "full-3", "full-4"} {
		p := n.simple(name)
		p.Annotations = map[string]string{"weight": strings.Repeat("x", 200<<10)}
		n.putPod(p)
	}
	n.awaitRunning("full-1", "full-2", "full-3", "full-4")
	n.waitFor("the log to say it", func() bool { return strings.Contains(n.agent.Log(), "local store is in memory only") })
	n.removeManifest("full-1") // an end has to be on disk first, and cannot
	n.waitFor("full-1 to go", func() bool { return n.pods()["full-1"].Name == "" && len(n.sandboxes("full-1")) == 0 })
	n.kill()
	n.launch()
	n.awaitRunning("before", "full-2", "full-3", "full-4")
	n.checkRanOnce("full-2")
	n.checkRanOnce("before")
	n.putPod(n.simple("after"))
	n.awaitRunning("after")
	n.must("make room", os.Remove(ballast))
	for _, name := range []string{"full-2", "full-3", "full-4"} {
		n.removeManifest(name) // all four would not fit
	}
	n.putPod(n.simple("last"))
	n.awaitRunning("last")
	n.waitFor("the store to be written again", func() bool {
		log := n.agent.Log()
		return strings.LastIndex(log, "local store available again") > strings.LastIndex(log, "local store is in memory only")
	})
	n.checkStillLive(before)
	n.checkRanOnce("before")
}

// TestScenario20_PodDiskFull: a pod that cannot get its directories says
// so, and starts by itself when there is room. The others do not notice.
func TestScenario20_PodDiskFull(t *testing.T) {
	t.Parallel()
	root := smallDisk(t, "4m")
	n := start(t, options{agent: hosts.AgentOptions{RootDir: root}})
	n.put("before", n.rich("before")...)
	n.awaitRunning("before")
	before := n.liveObjects("")
	ballast := fill(t, root)
	n.put("poor", n.rich("poor")...)
	n.waitFor("the pod to say what it lacks", func() bool {
		why, err := n.client.Why(t.Context(), "default", "poor")
		if err != nil {
			return false
		}
		for _, w := range why.WaitingFor {
			if strings.Contains(w.Message, "no space left on device") {
				return true
			}
		}
		return false
	})
	p := n.pods()["poor"]
	said := false
	for _, s := range statuses(&p) {
		said = said || s.State.Waiting != nil && s.State.Waiting.Reason != ""
	}
	if !said {
		t.Errorf("the status gives no reason: %+v", p.Status)
	}
	n.must("make room", os.Remove(ballast))
	n.awaitRunning("poor")
	n.checkRanOnce("poor")
	n.checkRanOnce("before")
	n.checkStillLive(before)
	n.removeManifest("poor")
	n.removeManifest("before")
	n.waitNothingLeft()
}
