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

// chatter prints numbered lines for some seconds, more than fits into one log
// file, and crashes right after its last words.
const chatterScript = `i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo line $i; [ $((i % 40)) = 0 ] && sleep 0.08; done; echo last words; exit 3`

// TestScenario30_LogsAreCompleteAcrossRotationsAndRestarts is row 30 of the scenarios: a
// follower, and later readers, get every line of every run.
func TestScenario30_LogsAreCompleteAcrossRotationsAndRestarts(t *testing.T) {
	o := nodeOptions{CNI: false, Config: map[string]any{
		"containerLogMaxSize": "20Ki", "containerLogMaxFiles": 50, "containerLogMaxWorkers": 2, "containerLogMonitorInterval": "3s",
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
					t.Fatalf("run %d: %q in place of line %d", run, lines.Text(), i+1)
				}
			}
			if !lines.Scan() || lines.Text() != "last words" {
				t.Fatalf("run %d ends with %q", run, lines.Text())
			}
		}
		s.checkRotatedLogs("chats")
		s.Remove("chats")
		for lines.Scan() { // the follower ends with the pod
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("logs -f: %v", err)
		}
	})
}

var rotatedName = regexp.MustCompile(`^\d+\.log\.\d{8}-\d{6}(\.gz)?$`)

// rotatedLogs looks at the log of the first run, which has ended and has been
// rotated while it ran, by its files and by what logs prints of it.
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
			t.Errorf("a rotated log is called %s", e.Name())
		}
		if strings.HasSuffix(e.Name(), ".gz") {
			compressed++
		}
	}
	if rotated < 2 || compressed == 0 { // the newest is not, nor what was written to just now
		t.Errorf("%d rotated logs, %d of them compressed: %v", rotated, compressed, entries)
	}
	previous := func(args ...string) []string {
		text := s.Berth(append([]string{"logs", "-p", "-n", s.ns, pod}, args...)...)
		return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	}
	all := previous()
	if len(all) != 4001 || all[0] != "line 1" || all[4000] != "last words" {
		t.Errorf("logs -p has %d lines, from %q to %q", len(all), all[0], all[len(all)-1])
	}
	if lastLines := previous("--tail", "3500"); len(lastLines) != 3500 || lastLines[0] != "line 502" || lastLines[3499] != "last words" {
		t.Errorf("--tail 3500 has %d lines, from %q", len(lastLines), lastLines[0])
	}
	var stamped, since []string
	for range 20 { // the container goes on crashing: which life is the previous one may change meanwhile
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
		t.Errorf("--since-time has %d lines, from %q", n, since[0])
	}
	s.waitMetric("berth_container_logs_rotated_total", atLeast(2))
}

// TestLogsOfDeletedPodsAreRemoved leaves the folder of a pod that is no more,
// and lets a container crash often enough that an instance of it is removed.
func TestLogsOfDeletedPodsAreRemoved(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		old := time.Now().Add(-time.Hour)
		orphan := filepath.Join(s.Agent.LogsDir, s.ns+"_gone_11111111-2222-3333-4444-555555555555")
		log := filepath.Join(orphan, "c", "0.log")
		if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(log, []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{log, filepath.Dir(log), orphan} {
			if err := os.Chtimes(f, old, old); err != nil {
				t.Fatal(err)
			}
		}
		s.Pod("crashes", "containers:\n"+box("c", "", "print bye", "exit 1"))
		p := s.Wait("crashes", "restarted three times", func(p *corev1.Pod) bool { return status(p, "c").RestartCount > 2 })
		first := filepath.Join(s.Agent.LogsDir, s.ns+"_crashes_"+string(p.UID), "c", "0.log")
		if err := os.Chtimes(first, old, old); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := waitContext(t)
		defer cancel()
		err := hosts.WaitFor(ctx, "logs of what is gone to be collected", func() (bool, error) { return !exists(orphan) && !exists(first), nil })
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"pod_logs", "container_logs", "container"} { // at the end of a round
			s.waitMetric(`berth_garbage_collected_total{kind="`+kind+`"}`, atLeast(1))
		}
	})
}
