package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The flood consists of floodBursts bursts of burstLines numbered lines, about ten MiB on disk.
const (
	floodBursts = 10
	burstLines  = 20_000
	floodLines  = floodBursts * burstLines
)

// floodScript prints the flood. After each burst it waits for a file with the number of the burst in /go.
const floodScript = `i=0; while [ $i -lt 10 ]; do seq $((i*20000+1)) $(((i+1)*20000)); i=$((i+1)); ` +
	`until [ -e /go/$i ]; do sleep 0.1; done; done; echo last line; exit 3`

// TestScenario30_LogFloodStaysWithinLimits has a container print about ten MiB in bursts and crash. Audits run
// once an hour, so only the growth of the log triggers its rotation, once per burst at least. The maximum size
// and number of log files keep only a small part of the output.
func TestScenario30_LogFloodStaysWithinLimits(t *testing.T) {
	o := nodeOptions{
		Config: map[string]any{"containerLogMaxSize": "256Ki", "containerLogMaxFiles": 3,
			"containerLogMonitorInterval": "1h"},
	}
	forEachNewNode(t, o, func(t *testing.T, s *Namespace) {
		s.checkFloodLogs("floods", s.runFlood("floods"))
	})
}

// runFlood runs floodScript in a pod until it crashes, and returns the output of logs -f. Each burst but the
// first is printed after the rotation of the one before, and the last line when the log has all bursts. It is the
// only one that the runtime may still have to read when the container exits: it has 2 s for that.
func (s *Namespace) runFlood(name string) string {
	s.t.Helper()
	dir := s.t.TempDir()
	s.Pod(name, "hostNetwork: true\nrestartPolicy: Never\nvolumes: [{name: go, hostPath: {path: "+dir+"}}]\n"+
		"containers:\n"+sh("c", "volumeMounts: [{name: go, mountPath: /go}]", floodScript))
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
	for i := 1; i <= floodBursts; i++ {
		s.waitMetric("berth_container_logs_rotated_total", atLeast(float64(i)))
		if i == floodBursts {
			waitFor(s.t, "all bursts in the log", func() bool {
				return s.Berth("logs", "-n", s.ns, name, "--tail", "1") == strconv.Itoa(floodLines)+"\n"
			})
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Phase(name, corev1.PodFailed)
	if err := cmd.Wait(); err != nil { // logs -f exits with the container
		s.t.Errorf("logs -f: %v", err)
	}
	return followed.String()
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
	if onDisk > printed/2 {
		s.t.Errorf("of %d printed bytes %d are on disk, want at most half", printed, onDisk)
	}
}

// countFloodLines returns the number of lines of a flood in a log. They must be consecutive and end with
// the last line. Between two files, containerd may divide a line into two, so the first line of the log may
// be the rest of one.
func countFloodLines(t *testing.T, text string) (count int) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if last := lines[len(lines)-1]; last != "last line" || len(lines) < 3 {
		t.Fatalf("the log ends with %q after %d lines, want \"last line\"", last, len(lines))
	}
	lines = lines[1 : len(lines)-1]
	next, err := strconv.Atoi(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	part := ""
	for i, line := range lines {
		part += line
		switch want := strconv.Itoa(next); {
		case part == want:
			next, part = next+1, ""
			count++
		case !strings.HasPrefix(want, part):
			t.Fatalf("line %d of the log: got %q, want %s", i+2, part, want)
		}
	}
	return count
}
