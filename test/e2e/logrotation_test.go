package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
)

// chatterScript prints numbered lines for several seconds, more than fit into one log file, and
// crashes right after its last line.
const chatterScript = `i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo line $i; [ $((i % 40)) = 0 ] && sleep 0.08; ` +
	`done; echo last line; exit 3`

// TestScenario30_LogsAreCompleteAcrossRotationsAndRestarts is scenario 30: logs -f and later readers get
// every line of every run.
func TestScenario30_LogsAreCompleteAcrossRotationsAndRestarts(t *testing.T) {
	o := nodeOptions{CNI: false, Config: map[string]any{
		"containerLogMaxSize": "20Ki", "containerLogMaxFiles": 50, "containerLogMaxWorkers": 2,
		"containerLogMonitorInterval": "3s",
	}}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		s.Pod("chats", "hostNetwork: true\ncontainers:\n"+sh("c", "", chatterScript))
		s.Wait("chats", "started", func(p *corev1.Pod) bool {
			c := status(p, "c")
			return c.State.Running != nil || c.RestartCount > 0
		})
		cmd := s.Agent.Command(t.Context(), "logs", "-f", "-n", s.ns, "chats")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for run := range 2 {
			for i := range 4000 {
				if !lines.Scan() || lines.Text() != fmt.Sprint("line ", i+1) {
					t.Fatalf("run %d: got %q, want line %d", run, lines.Text(), i+1)
				}
			}
			if !lines.Scan() || lines.Text() != "last line" {
				t.Fatalf("run %d ends with %q", run, lines.Text())
			}
		}
		s.checkRotatedLogs("chats")
		s.Remove("chats")
		for lines.Scan() { // logs -f exits with the pod
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("logs -f: %v", err)
		}
	})
}

var rotatedName = regexp.MustCompile(`^\d+\.log\.\d{8}-\d{6}(\.gz)?$`)

// checkRotatedLogs checks the log files of the first run, which were rotated during the run, and the
// output of berth logs for it.
func (s *Namespace) checkRotatedLogs(pod string) {
	t := s.t
	p := s.Get(pod)
	dir := filepath.Join(s.Agent.LogsDir, s.ns+"_"+pod+"_"+string(p.UID), "c")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	rotated, compressed := 0, 0
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "0.log.") {
			continue
		}
		rotated++
		if !rotatedName.MatchString(e.Name()) {
			t.Errorf("unexpected name of a rotated log: %s", e.Name())
		}
		if strings.HasSuffix(e.Name(), ".gz") {
			compressed++
		}
	}
	if rotated < 2 || compressed == 0 { // the newest rotated file is not compressed
		t.Errorf("got %d rotated logs, %d of them compressed: %v", rotated, compressed, entries)
	}
	previous := func(args ...string) []string {
		text := s.Berth(append([]string{"logs", "-p", "-n", s.ns, pod}, args...)...)
		return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	}
	all := previous()
	if len(all) != 4001 || all[0] != "line 1" || all[4000] != "last line" {
		t.Errorf("logs -p: got %d lines, from %q to %q", len(all), all[0], all[len(all)-1])
	}
	lastLines := previous("--tail", "3500")
	if len(lastLines) != 3500 || lastLines[0] != "line 502" || lastLines[3499] != "last line" {
		t.Errorf("--tail 3500: got %d lines, from %q", len(lastLines), lastLines[0])
	}
	var stamped, since []string
	for range 20 { // the container keeps crashing, so the previous instance may change during the loop
		stamped = previous("--timestamps")
		timestamp, _, _ := strings.Cut(stamped[1000], " ")
		when, err := time.Parse(time.RFC3339Nano, timestamp)
		if err != nil {
			t.Fatal(err)
		}
		since = previous("--timestamps", "--since-time", when.Truncate(time.Second).Format(time.RFC3339))
		if previous("--timestamps", "--tail", "1")[0] == stamped[4000] {
			break
		}
	}
	if n := len(since); n < 3000 || n > 4001 || since[n-1] != stamped[4000] || since[0] != stamped[4001-n] {
		t.Errorf("--since-time: got %d lines, from %q", n, since[0])
	}
	s.waitMetric("berth_container_logs_rotated_total", atLeast(2))
}

// TestLogsOfDeletedPodsAreRemoved creates the log directory of a deleted pod, and has a container crash
// until an old instance is removed.
func TestLogsOfDeletedPodsAreRemoved(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		old := time.Now().Add(-time.Hour)
		s.Pod("deleted", "containers:\n"+box("c", "", "print bye", "sleep"))
		uid := s.Phase("deleted", corev1.PodRunning).UID
		s.Remove("deleted")
		s.WaitDeleted("deleted")
		// Logs of a pod that berth deleted, as an interrupted deletion leaves them, and those of another program.
		orphan := filepath.Join(s.Agent.LogsDir, s.ns+"_deleted_"+string(uid))
		foreign := filepath.Join(s.Agent.LogsDir, s.ns+"_deleted_11111111-2222-3333-4444-555555555555")
		for _, dir := range []string{orphan, foreign} {
			log := filepath.Join(dir, "c", "0.log")
			if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(log, []byte("x\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, f := range []string{log, filepath.Dir(log), dir} {
				if err := os.Chtimes(f, old, old); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Pod("crashes", "containers:\n"+box("c", "", "print bye", "exit 1"))
		p := s.Wait("crashes", "restarted three times", func(p *corev1.Pod) bool {
			return status(p, "c").RestartCount > 2
		})
		first := filepath.Join(s.Agent.LogsDir, s.ns+"_crashes_"+string(p.UID), "c", "0.log")
		if err := os.Chtimes(first, old, old); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := waitContext(t)
		defer cancel()
		err := hosts.WaitFor(ctx, "logs of deleted pods and containers to be removed", func() (bool, error) {
			return !exists(orphan) && !exists(first), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"pod_logs", "container_logs", "container"} { // counted when a collection ends
			s.waitMetric(`berth_garbage_collected_total{kind="`+kind+`"}`, atLeast(1))
		}
		if !exists(foreign) {
			t.Error("the logs of another program were removed")
		}
		if err := os.RemoveAll(foreign); err != nil {
			t.Error(err)
		}
	})
}
