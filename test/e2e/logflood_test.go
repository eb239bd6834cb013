package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// floodLines is the number of lines that floodScript prints in bursts before its last line.
const floodLines = 200_000

const floodScript = `i=0; while [ $i -lt 40 ]; do seq $((i*5000+1)) $(((i+1)*5000)); i=$((i+1)); sleep 0.3; done; ` +
	`echo last line; exit 3`

// TestScenario30_LogFloodStaysWithinLimits has a container print about ten MiB in
// seconds and crash. Audits run once an hour, so only the growth of the log triggers its rotation.
// The maximum size and number of log files keep only a small part of the output.
func TestScenario30_LogFloodStaysWithinLimits(t *testing.T) {
	o := nodeOptions{
		Config: map[string]any{"containerLogMaxSize": "256Ki", "containerLogMaxFiles": 3,
			"containerLogMonitorInterval": "1h"},
	}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		for i := range 4 {
			name := fmt.Sprint("floods-", i)
			followed := s.runFlood(name)
			if !s.logTruncated(name) {
				s.checkFloodLogs(name, followed)
				return
			}
			t.Logf("the runtime has not written the last line of %s", name)
		}
		t.Error("the runtime has not written the last line of any container")
	})
}

// runFlood runs floodScript in a pod until it crashes, and returns the output of logs -f.
func (s *Namespace) runFlood(name string) string {
	s.t.Helper()
	s.Pod(name, "hostNetwork: true\nrestartPolicy: Never\ncontainers:\n"+sh("c", "", floodScript))
	s.Wait(name, "started", func(p *corev1.Pod) bool {
		c := status(p, "c")
		return c.State.Running != nil || c.State.Terminated != nil
	})
	cmd := s.Agent.Command(s.t.Context(), "logs", "-f", "-n", s.ns, name)
	var followed bytes.Buffer
	cmd.Stdout = &followed
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.Phase(name, corev1.PodFailed)
	if err := cmd.Wait(); err != nil { // logs -f exits with the container
		s.t.Errorf("logs -f: %v", err)
	}
	return followed.String()
}

// logTruncated reports whether the runtime has not written the whole output of a container. After the
// exit, the shim gives containerd 2 s to read the rest of the pipe, which may be too short on a busy
// machine.
func (s *Namespace) logTruncated(name string) bool {
	s.t.Helper()
	files := glob(s.t, filepath.Join(s.logDir(name), "0.log*")) // the current file, then rotated files by age
	text := readFile(s.t, files[0])
	if text == "" {
		text = readFile(s.t, files[len(files)-1])
	}
	return !strings.HasSuffix(text, " F last line\n")
}

// logDir returns the directory of the log files of a pod's container c.
func (s *Namespace) logDir(name string) string {
	s.t.Helper()
	return filepath.Join(s.Agent.LogsDir, s.ns+"_"+name+"_"+string(s.Phase(name, corev1.PodFailed).UID), "c")
}

func (s *Namespace) checkFloodLogs(name, followed string) {
	s.t.Helper()
	if !strings.HasSuffix(followed, "\nlast line\n") {
		s.t.Errorf("logs -f: got %d lines, last: %q", strings.Count(followed, "\n"),
			followed[max(len(followed)-100, 0):])
	}
	if kept := countFloodLines(s.t, s.Berth("logs", "-n", s.ns, name)); kept == 0 || kept == floodLines {
		s.t.Errorf("got %d of %d lines, want a part of them", kept, floodLines)
	}
	if last := s.Berth("logs", "-n", s.ns, name, "--tail", "1"); last != "last line\n" {
		s.t.Errorf("logs --tail 1: got %q", last)
	}
	printed, onDisk := int64(floodLines*50), int64(0)
	for _, f := range glob(s.t, filepath.Join(s.logDir(name), "*")) {
		st, err := os.Stat(f)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Logf("%s: %d bytes", filepath.Base(f), st.Size())
		onDisk += st.Size()
	}
	if onDisk > printed/2 { // no bound on the time of a check, only that the log was checked during the flood
		s.t.Errorf("of %d printed bytes %d are on disk, want at most half", printed, onDisk)
	}
	s.waitMetric("berth_container_logs_rotated_total", atLeast(3))
}

// floodOf returns the number of lines of a flood in a log. They must be consecutive and end with
// the last line.
func countFloodLines(t *testing.T, text string) (count int) {
	t.Helper()
	last, line := 0, ""
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if line = lines.Text(); line == "last line" {
			continue
		}
		n, err := strconv.Atoi(line)
		if err != nil || count > 0 && n != last+1 {
			t.Fatalf("%q after line %d", line, last)
		}
		last = n
		count++
	}
	if line != "last line" {
		t.Errorf("the log ends with %q, want \"last line\"", line)
	}
	return count
}
