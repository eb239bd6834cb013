package crash

import (
	"bytes"
	"fmt"
	"os"
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

// TestScenario21_CleanupOfInterruptedExecsSparesOthers: the agent or the runtime is killed while probes hang.
// What the probes have left is killed, also a process whose command has ended. A process of a container's own
// program that writes to another one, and what a user's exec has left, look alike but keep running.
func TestScenario21_CleanupOfInterruptedExecsSparesOthers(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			// Durations that no other test uses.
			straySecs := fmt.Sprint(300000 + time.Now().UnixNano()%100000)
			probeSecs, mainSecs, userSecs := straySecs+".1", straySecs+".2", straySecs+".3"
			// The program starts the pipeline after the probe, in a session whose leader ends.
			program := "until [ -e /tmp/go ]; do sleep 0.1; done; setsid sh -c 'sleep " + mainSecs + " | cat &'; " +
				"while :; do sleep 0.1; done"
			p := n.simple("shares")
			probe := func(script string) *corev1.Probe {
				return &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{
						Exec: &corev1.ExecAction{Command: []string{"sh", "-c", script}},
					},
					TimeoutSeconds: 600,
				}
			}
			p.Spec.Containers = []corev1.Container{
				{Name: "pipeline", Image: images.BusyboxRef, Command: []string{"sh", "-c", program},
					ReadinessProbe: probe("touch /tmp/go; sleep " + straySecs + " &")},
				{Name: "user", Image: images.BusyboxRef, Command: []string{"sh", "-c", "while :; do sleep 0.1; done"},
					ReadinessProbe: probe("sleep " + probeSecs + " & setsid sleep " + probeSecs + " & sleep " +
						probeSecs + "; true")},
			}
			podspec.SetDefaults(p)
			n.putPod(p)
			probes := func() (all []int) {
				return slices.Concat(n.sleepingPIDs(straySecs), n.sleepingPIDs(probeSecs))
			}
			n.waitFor("probes to hang", func() bool {
				return len(n.sleepingPIDs(straySecs)) == 1 && len(n.sleepingPIDs(probeSecs)) == 3
			})
			exec := n.agent.Command(n.Context(), "exec", "shares", "-c", "user", "--", "sh", "-c",
				"sleep "+userSecs+" & true")
			n.must("start a user exec", exec.Start())
			defer func() { _, _ = exec.Process.Kill(), exec.Wait() }() // it waits for the output
			others := func() []int { return slices.Concat(n.sleepingPIDs(mainSecs), n.sleepingPIDs(userSecs)) }
			n.waitFor("other processes without their session leaders", func() bool {
				all := others()
				return len(all) == 2 && !slices.ContainsFunc(all, n.hasSessionLeader)
			})
			before, keep := n.liveObjects(""), others()
			for _, c := range []struct {
				what      string
				interrupt func()
			}{
				{"agent killed", func() { n.kill(); n.launch() }},
				{"runtime killed", func() {
					n.must("kill containerd", n.host.Kill())
					n.must("start containerd", n.host.Restart(n.Context()))
				}},
			} {
				n.waitFor("exec records of the probes", func() bool { return len(n.execRecords()) == 2 })
				old, records := probes(), n.execRecords()
				c.interrupt()
				var now []int
				n.waitFor(c.what+": old probes to be killed and new ones to run", func() bool {
					now = probes()
					return len(now) == 4 && !slices.ContainsFunc(now, func(pid int) bool {
						return slices.Contains(old, pid)
					})
				})
				n.waitExecsCleanedUp(c.what, records, 2)
				if got := others(); !slices.Equal(got, keep) {
					t.Fatalf("%s: PIDs of the program and of the user: got %v, want %v", c.what, got, keep)
				}
				if got := probes(); !slices.Equal(got, now) {
					t.Errorf("%s: PIDs of the new probes changed: got %v, want %v", c.what, got, now)
				}
				n.checkStillLive(before)
			}
			n.removeManifest("shares")
			n.waitNothingLeft()
			if left := slices.Concat(probes(), others()); len(left) > 0 {
				t.Errorf("processes of the deleted pod still run: %v", left)
			}
		})
	}
}

// hasSessionLeader reports whether the leader of the session of a process is alive.
func (n *node) hasSessionLeader(pid int) bool {
	n.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	n.must("read the state of a process", err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	session, err := strconv.Atoi(fields[3])
	n.must("parse a session", err)
	leader, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", session))
	return err == nil && !strings.Contains(string(leader), ") Z ")
}
