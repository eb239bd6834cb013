package crash

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestInvalidStoreIsQuarantined: if the store is invalid, the agent logs what it does with it, and pods continue
// to run.
func TestInvalidStoreIsQuarantined(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.put("rich", n.rich("rich")...)
	n.putPod(n.simple("plain"))
	n.awaitRunning("rich", "plain")
	before := n.liveObjects("")
	file := filepath.Join(n.agent.StateDir, "berth.db")
	for state, corrupt := range map[string]func() error{
		"garbage":        func() error { return os.WriteFile(file, []byte(strings.Repeat("garbage ", 9000)), 0o600) },
		"empty":          func() error { return os.Truncate(file, 0) },
		"truncated":      func() error { return os.Truncate(file, 9000) },
		"another format": func() error { return os.WriteFile(file, []byte("SQLite format 3\x00"), 0o600) },
		"newer": func() error {
			db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: time.Second})
			if err != nil {
				return err
			}
			err = db.Update(func(tx *bbolt.Tx) error {
				return tx.Bucket([]byte("berth")).Put([]byte("version"), []byte("999"))
			})
			if err != nil {
				return err
			}
			return db.Close()
		},
		"missing":    func() error { return os.RemoveAll(file) },
		"directory":  func() error { return errors.Join(os.Remove(file), os.MkdirAll(file+"/deep", 0o700)) },
		"named pipe": func() error { return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)) },
		"device": func() error {
			return errors.Join(os.Remove(file), unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(1, 3))))
		},
		"link to itself":      func() error { return errors.Join(os.Remove(file), os.Symlink(file, file)) },
		"without permissions": func() error { return os.Chmod(file, 0) }, // root can read it
	} {
		n.must("stop the agent", n.agent.Stop(t.Context()))
		logStart := len(n.agent.Log())
		n.must(state, corrupt())
		n.launch()
		n.awaitRunning("rich", "plain")
		n.checkRanOnce("rich")
		n.checkRanOnce("plain")
		n.checkStillLive(before)
		log := n.agent.Log()[logStart:]
		reported := strings.Contains(log, "local store unusable") || strings.Contains(log, "in memory only")
		mustReport := state != "missing" && state != "empty" && state != "without permissions"
		if mustReport && !reported {
			t.Errorf("store %s: no log message about the unusable store:\n%s", state, log)
		}
		n.kill()
		n.launch()
		n.awaitRunning("rich", "plain")
		n.checkStillLive(before)
		if t.Failed() {
			t.Fatalf("store: %s", state)
		}
	}
	n.removeManifest("rich")
	n.removeManifest("plain")
	n.waitNothingLeft()
}

// TestRestartCountIsRecoveredFromLogs: after the store and the sandbox of a pod are lost, the agent derives the
// restart count from the pod's log files.
func TestRestartCountIsRecoveredFromLogs(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("counted"))
	n.awaitRunning("counted")
	restarted := func(times int32) func() bool {
		return func() bool {
			p := n.pods()["counted"]
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil &&
				p.Status.ContainerStatuses[0].RestartCount == times
		}
	}
	n.checkOutput([]string{"restart", "counted"})
	n.waitFor("a restart", restarted(1))
	n.must("stop the agent", n.agent.Stop(t.Context()))
	n.must("remove the store", os.Remove(filepath.Join(n.agent.StateDir, "berth.db")))
	for _, s := range n.sandboxes("counted") {
		_, err := n.host.Runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id})
		n.must("stop the sandbox", err)
		_, err = n.host.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
		n.must("remove the sandbox", err)
	}
	n.launch()
	n.waitFor("restart count to continue", restarted(2))
	n.removeManifest("counted")
	n.waitNothingLeft()
	n.putPod(n.simple("counted")) // counts from 0, although logs of the first pod may remain
	n.waitFor("new pod of the same name", restarted(0))
	n.removeManifest("counted")
	n.waitNothingLeft()
}

// TestAgentRunsInMemoryIfQuarantineFails: a file system is mounted at the path of the store, so the agent cannot
// quarantine it. The agent keeps its state in memory and reports this in the log, `berth ps` and `berth check`.
func TestAgentRunsInMemoryIfQuarantineFails(t *testing.T) {
	t.Parallel()
	n := start(t, options{})
	n.putPod(n.simple("plain"))
	n.awaitRunning("plain")
	before := n.liveObjects("")
	file := filepath.Join(n.agent.StateDir, "berth.db")
	n.must("stop the agent", n.agent.Stop(t.Context()))
	n.must("remove the store", os.Remove(file))
	n.must("create a directory", os.Mkdir(file, 0o700))
	n.must("mount", unix.Mount("tmpfs", file, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(file, unix.MNT_DETACH) })
	n.launch()
	n.awaitRunning("plain")
	n.checkStillLive(before)
	n.putPod(n.simple("late"))
	n.awaitRunning("late")
	n.checkOutput([]string{"ps"}, "only in memory", "quarantine failed")
	n.checkOutput([]string{"check"}, "local store", "quarantine failed",
		"remove the file that is in the place of the store")
	if log := n.agent.Log(); !strings.Contains(log, "local store is in memory only") {
		t.Errorf("no log message about the store in memory:\n%s", log)
	}
	n.must("unmount", unix.Unmount(file, 0))
	n.waitFor("store to be created", func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Mode().IsRegular()
	})
	for _, name := range []string{"plain", "late"} {
		n.checkRanOnce(name)
		n.removeManifest(name)
	}
	n.waitNothingLeft()
}
