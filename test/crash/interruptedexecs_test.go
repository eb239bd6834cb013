package crash

import (
	"bytes"
	"fmt"
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

// sleepers are the processes of the host that sleep for so many seconds, by
// number.
func (n *node) sleepers(secs string) (pids []int) {
	n.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	n.must("list processes", err)
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err == nil && slices.Equal(strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00"), []string{"sleep", secs}) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			n.must("a process' number", err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestScenario21_InterruptedExecsLeaveNoProcess: the agent, the runtime or
// both die, or the agent leaves, while a probe and a hook hang that have started
// more. Of them nothing is left, and what runs instead is left alone.
func TestScenario21_InterruptedExecsLeaveNoProcess(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			// Numbers that no other test sleeps for.
			probed := fmt.Sprint(200000 + time.Now().UnixNano()%100000)
			hooked, own := probed+".1", probed+".2"
			hangs := func(secs string) []string { // one of the three leaves their session
				return []string{"sh", "-c", "sleep " + secs + " & setsid sleep " + secs + " & sleep " + secs + "; true"}
			}
			p := n.simple("hangs")
			idle := []string{"sh", "-c", "(sleep " + own + " &); while :; do sleep 0.1; done"}
			p.Spec.Containers = []corev1.Container{
				{Name: "probed", Image: images.BusyboxRef, Command: idle, ReadinessProbe: &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: hangs(probed)}}, TimeoutSeconds: 600,
				}},
				{Name: "hooked", Image: images.BusyboxRef, Command: idle, Lifecycle: &corev1.Lifecycle{
					PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: hangs(hooked)}},
				}},
			}
			podspec.SetDefaults(p)
			n.putPod(p)
			under := func() (all []int) { return slices.Concat(n.sleepers(probed), n.sleepers(hooked)) }
			n.waitFor("a probe and a hook to hang", func() bool { return len(n.sleepers(probed)) == 3 && len(n.sleepers(hooked)) == 3 })
			before, daemons := n.liveObjects(""), n.sleepers(own)
			restart := func() { n.must("start containerd", n.host.Restart(n.Context())) }
			for _, c := range []struct {
				what string
				do   func()
			}{
				{"the agent is killed", func() { n.kill(); n.launch() }},
				{"the agent leaves", func() { n.must("stop the agent", n.agent.Stop(n.Context())); n.launch() }},
				{"the runtime is killed", func() { n.must("kill containerd", n.host.Kill()); restart() }},
				{"both are killed", func() {
					n.kill()
					n.must("kill containerd", n.host.Kill())
					n.launch()
					restart()
				}},
			} {
				old := under()
				c.do()
				var now []int
				n.waitFor(c.what+": the old commands to end, and new ones to run", func() bool {
					now = under()
					return len(now) == 6 && !slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(old, pid) })
				})
				for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) { // for that long nothing may happen
					if !slices.Equal(now, under()) {
						t.Fatalf("%s: what ran instead was %v and is now %v", c.what, now, under())
					}
				}
				n.checkStillLive(before)
				if got := n.sleepers(own); !slices.Equal(got, daemons) {
					t.Errorf("%s: of the containers' own processes %v %v are left", c.what, daemons, got)
				}
			}
			n.removeManifest("hangs")
			n.waitNothingLeft()
			if left := slices.Concat(under(), n.sleepers(own)); len(left) > 0 {
				t.Errorf("%v are left of the pod", left)
			}
		})
	}
}
