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

// smallDisk mounts a tmpfs of the given size until the end of the test and returns its directory.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The host may have unmounted it with the agent's directories.
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk writes a file until the disk is full and returns its path.
func fillDisk(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
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

// TestScenario20_StateDiskFull: pods start, run and terminate while the state disk is full. The agent keeps
// its state in memory, logs this, and writes the state to disk when space is available.
func TestScenario20_StateDiskFull(t *testing.T) {
	t.Parallel()
	state := smallDisk(t, "1m")
	n := start(t, options{agent: hosts.AgentOptions{StateDir: state}})
	n.putPod(n.simple("before"))
	n.awaitRunning("before")
	before := n.liveObjects("")
	filler := fillDisk(t, state)
	// Exceed the space that the store has preallocated.
	for _, name := range []string{"full-1", "full-2", "full-3", "full-4"} {
		p := n.simple(name)
		p.Annotations = map[string]string{"padding": strings.Repeat("x", 200<<10)}
		n.putPod(p)
	}
	n.awaitRunning("full-1", "full-2", "full-3", "full-4")
	n.waitFor("log message about the store in memory", func() bool {
		return strings.Contains(n.agent.Log(), "local store is in memory only")
	})
	n.removeManifest("full-1") // termination is persisted first, which fails
	n.waitFor("pod full-1 to be deleted", func() bool {
		return n.pods()["full-1"].Name == "" && len(n.sandboxes("full-1")) == 0
	})
	n.kill()
	n.launch()
	n.awaitRunning("before", "full-2", "full-3", "full-4")
	n.checkRanOnce("full-2")
	n.checkRanOnce("before")
	n.putPod(n.simple("after"))
	n.awaitRunning("after")
	n.must("free disk space", os.Remove(filler))
	for _, name := range []string{"full-2", "full-3", "full-4"} {
		n.removeManifest(name) // the disk has no space for all four
	}
	n.putPod(n.simple("last"))
	n.awaitRunning("last")
	n.waitFor("store to be written to disk again", func() bool {
		log := n.agent.Log()
		return strings.LastIndex(log, "local store available again") > strings.LastIndex(log,
			"local store is in memory only")
	})
	n.checkStillLive(before)
	n.checkRanOnce("before")
}

// TestScenario20_PodDiskFull: a pod whose directories cannot be created reports this, and starts when space
// is available. Other pods are not affected.
func TestScenario20_PodDiskFull(t *testing.T) {
	t.Parallel()
	root := smallDisk(t, "4m")
	n := start(t, options{agent: hosts.AgentOptions{RootDir: root}})
	n.put("before", n.rich("before")...)
	n.awaitRunning("before")
	before := n.liveObjects("")
	filler := fillDisk(t, root)
	n.put("no-space", n.rich("no-space")...)
	n.waitFor("pod to report the full disk", func() bool {
		why, err := n.client.Why(t.Context(), "default", "no-space")
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
	p := n.pods()["no-space"]
	hasReason := false
	for _, s := range statuses(&p) {
		hasReason = hasReason || s.State.Waiting != nil && s.State.Waiting.Reason != ""
	}
	if !hasReason {
		t.Errorf("status has no waiting reason: %+v", p.Status)
	}
	n.must("free disk space", os.Remove(filler))
	n.awaitRunning("no-space")
	n.checkRanOnce("no-space")
	n.checkRanOnce("before")
	n.checkStillLive(before)
	n.removeManifest("no-space")
	n.removeManifest("before")
	n.waitNothingLeft()
}
