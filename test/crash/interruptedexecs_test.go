package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
	"berth/test/hosts"
	"berth/test/images"
)

// sleepingPIDs returns the PIDs of the host's processes `sleep secs`.
func (n *node) sleepingPIDs(secs string) (pids []int) {
	n.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.must("list processes", err)
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err == nil && slices.Equal(strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"),
			[]string{"sleep", secs}) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			n.must("parse a PID", err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// execRecords returns the files in which the agent records the running commands of probes and hooks. The agent
// keeps the record of an interrupted command until its cleanup has ended.
func (n *node) execRecords() (files []string) {
	n.Helper()
	all, err := filepath.Glob(filepath.Join(n.agent.StateDir, "commands", "*.json"))
	n.must("list exec records", err)
	for _, file := range all {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		n.must("read an exec record", err)
		var record struct {
			UserExec bool `json:"granted"`
		}
		if json.Unmarshal(text, &record) != nil || !record.UserExec { // a record that is being written counts
			files = append(files, file)
		}
	}
	return files
}

// waitExecsCleanedUp waits until the agent has ended the cleanup of all interrupted commands, those with the
// given records among them, and the running commands are the only ones with a record.
func (n *node) waitExecsCleanedUp(what string, old []string, running int) {
	n.Helper()
	n.waitFor(what+": cleanup of interrupted commands to end", func() bool {
		now := n.execRecords()
		return len(now) == running && !slices.ContainsFunc(now, func(file string) bool {
			return slices.Contains(old, file)
		})
	})
}

// TestScenario21_InterruptedExecsLeaveNoProcess: the agent is stopped, or the agent, the runtime or both are
// killed, while a probe and a hook hang that have child processes. Their processes are killed. The processes
// of the repeated probe and hook, and other processes of the containers, keep running.
func TestScenario21_InterruptedExecsLeaveNoProcess(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			// Durations that no other test uses.
			probeSecs := fmt.Sprint(200000 + time.Now().UnixNano()%100000)
			hookSecs, daemonSecs := probeSecs+".1", probeSecs+".2"
			hangingCommand := func(secs string) []string { // three processes, one of them in its own session
				return []string{"sh", "-c", "sleep " + secs + " & setsid sleep " + secs + " & sleep " + secs + "; true"}
			}
			p := n.simple("hangs")
			idle := []string{"sh", "-c", "(sleep " + daemonSecs + " &); while :; do sleep 0.1; done"}
			p.Spec.Containers = []corev1.Container{
				{Name: "probed", Image: images.BusyboxRef, Command: idle, ReadinessProbe: &corev1.Probe{
					ProbeHandler:   corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: hangingCommand(probeSecs)}},
					TimeoutSeconds: 600,
				}},
				{Name: "hooked", Image: images.BusyboxRef, Command: idle, Lifecycle: &corev1.Lifecycle{
					PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: hangingCommand(hookSecs)}},
				}},
			}
			podspec.SetDefaults(p)
			n.putPod(p)
			execPIDs := func() (all []int) { return slices.Concat(n.sleepingPIDs(probeSecs), n.sleepingPIDs(hookSecs)) }
			n.waitFor("probe and hook to hang", func() bool {
				return len(n.sleepingPIDs(probeSecs)) == 3 && len(n.sleepingPIDs(hookSecs)) == 3
			})
			before, daemons := n.liveObjects(""), n.sleepingPIDs(daemonSecs)
			var old []int
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("PIDs of the commands: %v; before the last interruption: %v; records: %v", execPIDs(), old,
						n.execRecords())
				}
			})
			restart := func() { n.must("start containerd", n.host.Restart(n.Context())) }
			killBoth := func() {
				n.kill()
				n.must("kill containerd", n.host.Kill())
				n.launch()
				restart()
			}
			for _, c := range []struct {
				what      string
				interrupt func()
			}{
				{"agent and runtime killed right after the start", killBoth},
				{"agent killed", func() { n.kill(); n.launch() }},
				{"agent stopped", func() { n.must("stop the agent", n.agent.Stop(n.Context())); n.launch() }},
				{"runtime killed", func() { n.must("kill containerd", n.host.Kill()); restart() }},
				{"agent and runtime killed", killBoth},
			} {
				n.waitFor("exec records of the probe and the hook", func() bool { return len(n.execRecords()) == 2 })
				old = execPIDs()
				records := n.execRecords()
				c.interrupt()
				var now []int
				n.waitFor(c.what+": old commands to be killed and new ones to run", func() bool {
					now = execPIDs()
					return len(now) == 6 && !slices.ContainsFunc(now, func(pid int) bool {
						return slices.Contains(old, pid)
					})
				})
				n.waitExecsCleanedUp(c.what, records, 2)
				if got := execPIDs(); !slices.Equal(got, now) { // the new processes keep running
					t.Fatalf("%s: PIDs of the new commands changed: got %v, want %v", c.what, got, now)
				}
				n.checkStillLive(before)
				if got := n.sleepingPIDs(daemonSecs); !slices.Equal(got, daemons) {
					t.Errorf("%s: PIDs of the containers' own processes: got %v, want %v", c.what, got, daemons)
				}
			}
			n.removeManifest("hangs")
			n.waitNothingLeft()
			if left := slices.Concat(execPIDs(), n.sleepingPIDs(daemonSecs)); len(left) > 0 {
				t.Errorf("processes of the deleted pod still run: %v", left)
			}
		})
	}
}
