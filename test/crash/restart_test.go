package crash

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/test/hosts"
)

// configure changes the text of the agent's configuration; it holds from the
// next start on.
func (n *node) configure(old, now string) {
	n.Helper()
	text, err := os.ReadFile(n.agent.ConfigFile)
	n.must("read the configuration", err)
	if !strings.Contains(string(text), old) {
		n.Fatalf("no %q in the configuration:\n%s", old, text)
	}
	n.must("configure", os.WriteFile(n.agent.ConfigFile, []byte(strings.Replace(string(text), old, now, 1)), 0o644))
}

// TestScenario09_AgentRestartDoesNotReadmitPods: the node has become smaller,
// has other labels and a taint that no pod tolerates. What runs goes on, over a
// hundred restarts of which half are kills.
func TestScenario09_AgentRestartDoesNotReadmitPods(t *testing.T) {
	t.Parallel()
	n := start(t, options{agent: hosts.AgentOptions{
		Config:    map[string]any{"maxPods": 3},
		ExtraArgs: []string{"--node-labels", "disk=fast"},
	}})
	names := []string{"one", "two", "three"}
	for _, name := range names {
		p := n.simple(name)
		p.Spec.NodeSelector = map[string]string{"disk": "fast"}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m")}
		n.putPod(p)
	}
	n.awaitRunning(names...)
	late := n.simple("late")
	n.putPod(late)
	n.waitFor("the fourth pod to wait", func() bool { _, known := n.pods()["late"]; return known })
	n.must("restart the agent", n.agent.Restart(t.Context()))
	n.awaitRunning(names...)
	before, first := n.liveObjects(""), n.pods()

	n.configure("maxPods: 3", "maxPods: 1\nsystemReserved: {cpu: 1500m}")
	for i, arg := range n.agent.Args {
		if arg == "disk=fast" {
			n.agent.Args[i] = "disk=slow"
		}
	}
	n.agent.Args = append(n.agent.Args, "--register-with-taints", "away=now:NoSchedule,gone=now:NoExecute")
	for i := range 100 {
		if i%2 == 0 {
			n.must("stop the agent", n.agent.Stop(t.Context()))
		} else {
			n.kill()
		}
		n.launch()
		n.waitFor("the pods to be known", func() bool { return len(n.pods()) == 4 })
		now := n.pods()
		for _, name := range names {
			was, is := first[name], now[name]
			n.compareStatus(&was, &is)
		}
		if p := now["late"]; p.Status.Phase != corev1.PodPending || len(n.sandboxes("late")) > 0 {
			t.Errorf("the pod that had no room: %s %s", p.Status.Phase, p.Status.Message)
		}
		if t.Failed() {
			t.Fatalf("after %d restarts", i+1)
		}
	}
	n.checkStillLive(before)
	for _, name := range names {
		n.checkRanOnce(name)
	}
}

// TestScenario12_ExitCodesWhileAgentWasDown: a container that ended while the
// agent was away is reported with the exit code that it had.
func TestScenario12_ExitCodesWhileAgentWasDown(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			codes := map[string]int32{"zero": 0, "seven": 7}
			for name, code := range codes {
				for _, when := range []string{"agent", "runtime", "both"} {
					p := n.simple(when+"-"+name, "await", "/witness/go-"+when, ",", "exit", strconv.Itoa(int(code)))
					p.Spec.RestartPolicy = corev1.RestartPolicyNever
					n.putPod(p)
				}
			}
			n.awaitRunning("agent-zero", "agent-seven", "runtime-zero", "runtime-seven", "both-zero", "both-seven")
			n.terminateDuring("agent", n.kill)
			n.launch()
			n.checkExited("agent-zero", 0) // a runtime that is killed before it has kept an exit has lost it
			n.checkExited("agent-seven", 7)
			n.terminateDuring("runtime", func() { n.must("kill containerd", n.host.Kill()) })
			back := time.Now()
			n.must("restart containerd", n.host.Restart(t.Context()))
			if v == hosts.Version16 || kernelReportsExits(t) { // the agent was there, and holds the processes
				for name, code := range codes {
					n.checkExited("runtime-"+name, code)
					end := n.pods()["runtime-"+name].Status.ContainerStatuses[0].State.Terminated
					if v == hosts.Version2 && end.FinishedAt.After(back) {
						t.Errorf("%s ended at %s, and the runtime was back at %s only", name, end.FinishedAt, back)
					}
				}
			}
			n.terminateDuring("both", func() { n.kill(); n.must("kill containerd", n.host.Kill()) })
			n.must("restart containerd", n.host.Restart(t.Context()))
			n.launch()
			for name, code := range codes {
				for _, when := range []string{"agent", "runtime", "both"} {
					if v == hosts.Version2 && when != "agent" && n.exitCodeLost(when+"-"+name) {
						continue
					}
					n.checkExited(when+"-"+name, code)
				}
			}
		})
	}
}

// terminateDuring lets the pods of a kind end while something is away.
func (n *node) terminateDuring(when string, without func()) {
	n.Helper()
	without()
	n.must("go", os.WriteFile(n.witness+"/go-"+when, nil, 0o644))
	// No component knows: search for the processes themselves.
	n.waitFor("the containers to end", func() bool { return n.processes("go-"+when) == 0 })
}

// processes counts what pids lists.
func (n *node) processes(suffix string) int { return len(n.pids(suffix)) }

// pids are the machine's processes with an argument that ends so and that lie below
// the host's cgroup, by number.
func (n *node) pids(suffix string) (all []string) {
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		cmd, err := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		if err != nil || !strings.Contains(string(cmd), suffix+"\x00") {
			continue
		}
		group, _ := os.ReadFile("/proc/" + d.Name() + "/cgroup")
		if strings.Contains(string(group), n.host.CgroupRoot+"/") {
			all = append(all, d.Name())
		}
	}
	return all
}

func (n *node) checkExited(name string, code int32) {
	n.Helper()
	n.waitFor(name+" to be over", func() bool {
		p := n.pods()[name]
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	p := n.pods()[name]
	end := p.Status.ContainerStatuses[0].State.Terminated
	if end == nil || end.ExitCode != code || end.FinishedAt.IsZero() || end.StartedAt.IsZero() || (p.Status.Phase == corev1.PodSucceeded) != (code == 0) {
		n.Errorf("%s: phase %s, %+v, want exit code %d", name, p.Status.Phase, end, code)
	}
	if ran := n.startCount(name, "main"); ran != 1 {
		n.Errorf("%s ran %d times", name, ran)
	}
}

// kernelReportsExits reports whether this kernel reports the exit of a process that it held,
// and that another has reaped, how it ended: Linux 6.15.
func kernelReportsExits(t *testing.T) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}

// exitCodeLost reports whether the runtime says that it does not know how a container
// ended. When it starts, containerd 2.x deletes the task of a container that
// ended in its absence ("cleaning leaked shim process") before it has asked for
// the exit code. Where the kernel is too old to be asked instead, or the agent was
// away too, no other component has it: 255 and Unknown are the truth then.
func (n *node) exitCodeLost(name string) bool {
	n.Helper()
	n.waitFor(name+" to be over", func() bool {
		return n.pods()[name].Status.Phase == corev1.PodFailed || n.pods()[name].Status.Phase == corev1.PodSucceeded
	})
	end := n.pods()[name].Status.ContainerStatuses[0].State.Terminated
	return end != nil && end.ExitCode == 255 && end.Reason == "Unknown"
}

// TestScenario17_ContainerdRestartRecreatesNothing: with and without the
// agent, and while pods come and go.
func TestScenario17_ContainerdRestartRecreatesNothing(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			names := []string{"rich", "one", "two"}
			n.put("rich", n.rich("rich")...)
			n.putPod(n.simple("one"))
			n.putPod(n.simple("two"))
			n.awaitRunning(names...)
			n.must("restart the agent", n.agent.Restart(t.Context()))
			n.awaitRunning(names...)
			before, first := n.liveObjects(""), n.pods()
			same := func() {
				t.Helper()
				now := n.pods()
				for _, name := range names {
					was, is := first[name], now[name]
					n.compareStatus(&was, &is)
				}
			}
			for round, way := range []func(){
				func() { n.must("containerd", n.host.Restart(t.Context())) },
				func() { // away for a while: the agent has to ask again and again
					n.must("containerd", n.host.Kill())
					n.putPod(n.simple("after-b"))
					n.waitFor("the agent to know a new pod", func() bool { return n.pods()["after-b"].Name != "" })
					same()
					n.must("containerd", n.host.Restart(t.Context()))
				},
				func() { // the agent comes first
					n.kill()
					n.must("containerd", n.host.Kill())
					n.must("agent", n.agent.Start(t.Context()))
					n.must("containerd", n.host.Restart(t.Context()))
				},
				func() { // containerd comes first
					n.kill()
					n.must("containerd", n.host.Restart(t.Context()))
					n.must("agent", n.agent.Start(t.Context()))
				},
			} {
				way()
				// A new pod proves that the agent is at work again.
				witness := n.simple("after-" + string('a'+rune(round)))
				n.putPod(witness) // again, the second time
				n.awaitRunning(append(names, witness.Name)...)
				n.checkRanOnce(witness.Name)
				same()
				n.checkStillLive(before)
				if t.Failed() {
					t.Fatalf("after way %d", round)
				}
			}
			// While pods come and go.
			for i := range 5 {
				name := "moving-" + string('a'+rune(i))
				n.putPod(n.simple(name))
				n.waitFor("the pod to be known", func() bool { return n.pods()[name].Name != "" })
				time.Sleep(time.Duration(i) * 40 * time.Millisecond) // each time elsewhere on the way up
				n.must("containerd", n.host.Restart(t.Context()))
				n.awaitRunning(name)
				n.checkRanOnce(name)
				n.removeManifest(name)
				time.Sleep(time.Duration(i) * 40 * time.Millisecond) // and on the way down
				n.must("containerd", n.host.Restart(t.Context()))
			}
			same()
			n.checkStillLive(before)
			for _, name := range append(names, "after-a", "after-b", "after-c", "after-d") {
				n.checkRanOnce(name)
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}
