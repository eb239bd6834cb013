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

// floodLines are what flood prints before its last words, in bursts.
const floodLines = 200_000

const floodScript = `i=0; while [ $i -lt 40 ]; do seq $((i*5000+1)) $(((i+1)*5000)); i=$((i+1)); sleep 0.3; done; echo last words; exit 3`

// TestScenario30_LogFloodStaysWithinLimits has a container print about ten MiB in
// seconds and crash. Audits run once an hour, so only the growth of the log triggers its rotation.
// The maximum size and number of files keep far less than what is printed.
func TestScenario30_LogFloodStaysWithinLimits(t *testing.T) {
	o := nodeOptions{
		Config: map[string]any{"containerLogMaxSize": "256Ki", "containerLogMaxFiles": 3, "containerLogMonitorInterval": "1h"},
	}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		for i := range 4 {
			name := fmt.Sprint("floods-", i)
			followed := s.runFlood(name)
			if !s.logTruncated(name) {
				s.checkFloodLogs(name, followed)
				return
			}
			t.Logf("the runtime has not written the last words of %s", name)
		}
		t.Error("the runtime has not written the last words of one container")
	})
}

// flood has a pod print and crash, and returns what a follower got.
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
	if err := cmd.Wait(); err != nil { // it ends with the container
		s.t.Errorf("logs -f: %v", err)
	}
	return followed.String()
}

// cutShort reports whether the runtime itself has not written all that a container
// printed: its shim gives containerd 2 s after the exit to read what is still in the
// pipe, which is not enough where a busy machine does not let it run.
func (s *Namespace) logTruncated(name string) bool {
	s.t.Helper()
	files := glob(s.t, filepath.Join(s.logDir(name), "0.log*")) // the one that is written, then by age
	text := readFile(s.t, files[0])
	if text == "" {
		text = readFile(s.t, files[len(files)-1])
	}
	return !strings.HasSuffix(text, " F last words\n")
}

// logFolder is where the runtime writes the log of a pod's container c.
func (s *Namespace) logDir(name string) string {
	s.t.Helper()
	return filepath.Join(s.Agent.LogsDir, s.ns+"_"+name+"_"+string(s.Phase(name, corev1.PodFailed).UID), "c")
}

func (s *Namespace) checkFloodLogs(name, followed string) {
	s.t.Helper()
	if !strings.HasSuffix(followed, "\nlast words\n") {
		s.t.Errorf("logs -f gave %d lines, the last of them %q", strings.Count(followed, "\n"), followed[max(len(followed)-100, 0):])
	}
	if kept := countFloodLines(s.t, s.Berth("logs", "-n", s.ns, name)); kept == 0 || kept == floodLines {
		s.t.Errorf("%d of %d lines are kept", kept, floodLines)
	}
	if last := s.Berth("logs", "-n", s.ns, name, "--tail", "1"); last != "last words\n" {
		s.t.Errorf("the last line is %q", last)
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
	if onDisk > printed/2 { // no bound of time is asked for: only that the log was checked in between
		s.t.Errorf("of %d bytes %d are on the disk", printed, onDisk)
	}
	s.waitMetric("berth_container_logs_rotated_total", atLeast(3))
}

// floodOf returns the number of lines of a flood in a log. They must be consecutive and end with
// the last words.
func countFloodLines(t *testing.T, text string) (count int) {
	t.Helper()
	last, line := 0, ""
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if line = lines.Text(); line == "last words" {
			continue
		}
		n, err := strconv.Atoi(line)
		if err != nil || count > 0 && n != last+1 {
			t.Fatalf("%q after line %d", line, last)
		}
		last = n
		count++
	}
	if line != "last words" {
		t.Errorf("the log ends with %q", line)
	}
	return count
}
