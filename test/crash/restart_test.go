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

// configure replaces a text in the agent's configuration file. The change takes effect at the next start.
func (n *node) configure(old, replacement string) {
	n.Helper()
	text, err := os.ReadFile(n.agent.ConfigFile)
	n.must("read the configuration", err)
	if !strings.Contains(string(text), old) {
		n.Fatalf("%q not found in the configuration:\n%s", old, text)
	}
	n.must("write the configuration", os.WriteFile(n.agent.ConfigFile,
		[]byte(strings.Replace(string(text), old, replacement, 1)), 0o644))
}

// TestScenario09_AgentRestartDoesNotReadmitPods: after a configuration change, the node has less allocatable
// capacity, other labels, and taints that no pod tolerates. Running pods continue to run across a hundred agent
// restarts, half of which are kills.
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
	n.waitFor("fourth pod to be known", func() bool { _, known := n.pods()["late"]; return known })
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
		n.waitFor("pods to be known", func() bool { return len(n.pods()) == 4 })
		now := n.pods()
		for _, name := range names {
			oldPod, newPod := first[name], now[name]
			n.compareStatus(&oldPod, &newPod)
		}
		if p := now["late"]; p.Status.Phase != corev1.PodPending || len(n.sandboxes("late")) > 0 {
			t.Errorf("pod late, which exceeds maxPods: got phase %s (%s), want Pending without a sandbox",
				p.Status.Phase, p.Status.Message)
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

// TestScenario12_ExitCodesWhileAgentWasDown: the agent reports the exit code of a container that exited while
// the agent, the runtime or both were down.
func TestScenario12_ExitCodesWhileAgentWasDown(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
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
			n.checkExited("agent-zero", 0) // before the runtime is killed, which may lose the exit code
			n.checkExited("agent-seven", 7)
			n.terminateDuring("runtime", func() { n.must("kill containerd", n.host.Kill()) })
			restarted := time.Now()
			n.must("restart containerd", n.host.Restart(t.Context()))
			if v == hosts.Version16 || kernelReportsExits(t) { // the agent holds pidfds of the processes
				for name, code := range codes {
					n.checkExited("runtime-"+name, code)
					terminated := n.pods()["runtime-"+name].Status.ContainerStatuses[0].State.Terminated
					if v == hosts.Version2 && terminated.FinishedAt.After(restarted) {
						t.Errorf("%s: finishedAt is %s, after the restart of the runtime at %s", name,
							terminated.FinishedAt, restarted)
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

// terminateDuring calls stop and then releases the pods whose names start with when. It waits until their
// processes have exited.
func (n *node) terminateDuring(when string, stop func()) {
	n.Helper()
	stop()
	n.must("release the containers", os.WriteFile(n.witness+"/go-"+when, nil, 0o644))
	// The agent or the runtime is down, so search for the processes.
	n.waitFor("containers to exit", func() bool { return n.processes("go-"+when) == 0 })
}

// processes returns the number of processes that pids returns.
func (n *node) processes(suffix string) int { return len(n.pids(suffix)) }

// pids returns the PIDs of the processes below the host's cgroup with an argument that ends with suffix.
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

// checkExited waits until a pod has finished. It checks the exit code, and that the container started once.
func (n *node) checkExited(name string, code int32) {
	n.Helper()
	n.waitFor("pod "+name+" to finish", func() bool {
		p := n.pods()[name]
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	p := n.pods()[name]
	terminated := p.Status.ContainerStatuses[0].State.Terminated
	if terminated == nil || terminated.ExitCode != code || terminated.FinishedAt.IsZero() ||
		terminated.StartedAt.IsZero() || (p.Status.Phase == corev1.PodSucceeded) != (code == 0) {
		n.Errorf("%s: phase %s, %+v, want exit code %d", name, p.Status.Phase, terminated, code)
	}
	if ran := n.startCount(name, "main"); ran != 1 {
		n.Errorf("pod %s: container main: got %d starts, want 1", name, ran)
	}
}

// kernelReportsExits reports whether the kernel returns the exit code of a process that another process has
// reaped, through a pidfd. This requires Linux 6.15.
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

// exitCodeLost waits until a pod has finished and reports whether its exit code is unknown. When containerd 2.x
// starts, it deletes the task of a container that exited while it was down ("cleaning leaked shim process")
// before it reads the exit code. No other component has it if the kernel is too old or the agent was down too.
// The correct status is then exit code 255 with the reason Unknown.
func (n *node) exitCodeLost(name string) bool {
	n.Helper()
	n.waitFor("pod "+name+" to finish", func() bool {
		return n.pods()[name].Status.Phase == corev1.PodFailed || n.pods()[name].Status.Phase == corev1.PodSucceeded
	})
	terminated := n.pods()[name].Status.ContainerStatuses[0].State.Terminated
	return terminated != nil && terminated.ExitCode == 255 && terminated.Reason == "Unknown"
}

// TestScenario17_ContainerdRestartRecreatesNothing: a restart of containerd does not restart or recreate
// containers. The test restarts containerd with and without the agent, and while pods start and terminate.
func TestScenario17_ContainerdRestartRecreatesNothing(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
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
			checkUnchanged := func() {
				t.Helper()
				now := n.pods()
				for _, name := range names {
					oldPod, newPod := first[name], now[name]
					n.compareStatus(&oldPod, &newPod)
				}
			}
			for round, restart := range []func(){
				func() { n.must("restart containerd", n.host.Restart(t.Context())) },
				func() { // down for some time: the agent retries its calls
					n.must("kill containerd", n.host.Kill())
					n.putPod(n.simple("after-b"))
					n.waitFor("agent to know the new pod", func() bool { return n.pods()["after-b"].Name != "" })
					checkUnchanged()
					n.must("restart containerd", n.host.Restart(t.Context()))
				},
				func() { // the agent starts first
					n.kill()
					n.must("kill containerd", n.host.Kill())
					n.must("start the agent", n.agent.Start(t.Context()))
					n.must("restart containerd", n.host.Restart(t.Context()))
				},
				func() { // containerd starts first
					n.kill()
					n.must("restart containerd", n.host.Restart(t.Context()))
					n.must("start the agent", n.agent.Start(t.Context()))
				},
			} {
				restart()
				// When a new pod runs, the agent has reconnected to the runtime.
				newPod := n.simple("after-" + string('a'+rune(round)))
				n.putPod(newPod) // in round 1, the pod already exists
				n.awaitRunning(append(names, newPod.Name)...)
				n.checkRanOnce(newPod.Name)
				checkUnchanged()
				n.checkStillLive(before)
				if t.Failed() {
					t.Fatalf("in round %d", round)
				}
			}
			// While pods start and terminate.
			for i := range 5 {
				name := "moving-" + string('a'+rune(i))
				n.putPod(n.simple(name))
				n.waitFor("pod to be known", func() bool { return n.pods()[name].Name != "" })
				time.Sleep(time.Duration(i) * 40 * time.Millisecond) // at a different point of the start each time
				n.must("restart containerd", n.host.Restart(t.Context()))
				n.awaitRunning(name)
				n.checkRanOnceAcrossRestart(name)
				n.removeManifest(name)
				time.Sleep(time.Duration(i) * 40 * time.Millisecond) // and of the termination
				n.must("restart containerd", n.host.Restart(t.Context()))
			}
			checkUnchanged()
			n.checkStillLive(before)
			for _, name := range append(names, "after-a", "after-b", "after-c", "after-d") {
				n.checkRanOnce(name)
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}
