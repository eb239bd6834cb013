package crash

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/nodeapi"
	"berth/podspec"
	"berth/test/hosts"
)

// probedPod returns a pod with probes of all types that run every second. The command of one probe does not
// return during the test, so that an exec is always in progress.
func (n *node) probedPod(name string) *corev1.Pod {
	n.Helper()
	p := n.simple(name, "serve", "8080")
	everySecond := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 3, TimeoutSeconds: 6}
	}
	get := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/delay?d=200ms", Port: intstr.FromInt32(8080)}}
	tcp := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}
	run := func(steps ...string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"/bin/testbox"}, steps...)}}
	}
	c := &p.Spec.Containers[0]
	c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = everySecond(tcp), everySecond(get), everySecond(tcp)
	c.StartupProbe.FailureThreshold = 60
	commands := *c.DeepCopy()
	commands.Name = "commands"
	commands.Args = []string{"grpc", "9000"}
	commands.StartupProbe = everySecond(run("print", "up"))
	commands.ReadinessProbe = everySecond(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}})
	commands.LivenessProbe = everySecond(run("sleep", "700ms", ",", "print", name+"-alive"))
	commands.LivenessProbe.TimeoutSeconds = 20
	commands.LivenessProbe.FailureThreshold = 5
	commands.StartupProbe.TimeoutSeconds, commands.StartupProbe.FailureThreshold = 20, 60
	hanging := *c.DeepCopy()
	hanging.Name, hanging.Args = "hangs", []string{"sleep"}
	hanging.StartupProbe, hanging.ReadinessProbe = nil, nil
	hanging.LivenessProbe = everySecond(run("sleep", "1h", ",", "print", name+longProbeMarker))
	hanging.LivenessProbe.TimeoutSeconds = 3600
	p.Spec.Containers = append(p.Spec.Containers, commands, hanging)
	podspec.SetDefaults(p)
	return p
}

// longProbeMarker is the end of the command line of the probe that does not return.
const longProbeMarker = "-long-probe"

// TestScenario10_KillsDuringProbesKeepReadiness kills the agent while probes of all types are in progress, and
// stops its process for longer than every probe timeout. Pods stay Ready. Probe commands that were interrupted
// are killed. It tests every third phase of the probes, and all phases with BERTH_TORTURE.
func TestScenario10_KillsDuringProbesKeepReadiness(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			step := 3
			if os.Getenv("BERTH_TORTURE") != "" {
				step = 1
			}
			n := start(t, options{host: hosts.Options{Version: v}})
			names := []string{"one", "two", "three"}
			for _, name := range names {
				n.putPod(n.probedPod(name))
			}
			n.awaitRunning(names...)
			before, firstStatus := n.liveObjects(""), n.pods()
			for i := 0; i < 15; i += step {
				watch := n.watchReady(names)
				time.Sleep(time.Duration(i*53) * time.Millisecond) // a different phase of the probes each time
				if i%5 == 4 {
					pid := n.agent.Pid()
					n.must("send SIGSTOP to the agent", syscall.Kill(pid, syscall.SIGSTOP))
					time.Sleep(7500 * time.Millisecond) // longer than a timeout and a period
					n.must("send SIGCONT to the agent", syscall.Kill(pid, syscall.SIGCONT))
				}
				watch.finish(n)
				n.waitFor("probe command of each pod to run",
					func() bool { return n.processes(longProbeMarker) == len(names) })
				interrupted := n.pids(longProbeMarker)
				n.kill()
				n.launch()
				watch = n.watchReady(names)
				n.awaitRunning(names...)
				n.waitFor("agent to report container statuses", func() bool {
					for _, p := range n.pods() {
						if len(p.Status.ContainerStatuses) == 0 { // the agent has not observed the runtime yet
							return false
						}
					}
					return true
				})
				watch.finish(n)
				n.waitFor("interrupted probe commands to be killed", func() bool {
					return !slices.ContainsFunc(n.pids(longProbeMarker),
						func(pid string) bool { return slices.Contains(interrupted, pid) })
				})
				now := n.pods()
				for _, name := range names {
					oldPod, newPod := firstStatus[name], now[name]
					n.compareStatus(&oldPod, &newPod)
				}
				if t.Failed() {
					t.Fatalf("after the kill in phase %d", i)
				}
			}
			n.checkStillLive(before)
			for _, name := range names {
				n.removeManifest(name)
			}
			n.waitNothingLeft()
		})
	}
}

// TestHungExecProbeFails: an exec probe that hangs because its shim hangs fails, and the pod becomes not Ready.
// If the whole runtime hangs, the result is unknown and the pod stays Ready.
func TestHungExecProbeFails(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			p := n.simple("stuck")
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/testbox", "print",
					"fine"}}},
				PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 2,
			}
			n.putPod(p)
			n.awaitRunning("stuck")
			ready := func(want corev1.ConditionStatus) func() bool {
				return func() bool { p := n.pods()["stuck"]; return readyOf(&p).Status == want }
			}
			n.waitFor("pod to be Ready", ready(corev1.ConditionTrue))
			shims := n.shims(n.sandboxes("stuck")[0].Id)
			if len(shims) != 1 {
				t.Fatalf("got shims %v, want one", shims)
			}
			watch := n.watchReady([]string{"stuck"})
			resume := n.stopProcess(n.host.Pid())
			n.waitFor("probe with an unknown result", func() bool {
				probes, err := n.client.Probes(n.Context(), "default", "stuck")
				return err == nil && len(probes.Probes) == 1 &&
					slices.ContainsFunc(probes.Probes[0].Recent, func(r nodeapi.ProbeRun) bool {
						return r.Result == "unknown" && strings.Contains(r.Output, "runtime interrupted the command")
					})
			})
			resume()
			n.waitFor("next probe to succeed", func() bool {
				probes, err := n.client.Probes(n.Context(), "default", "stuck")
				return err == nil && len(probes.Probes) == 1 && len(probes.Probes[0].Recent) > 0 &&
					probes.Probes[0].Recent[0].Result == "success"
			})
			watch.finish(n)
			resume = n.stopProcess(shims[0])
			n.waitFor("pod not to be Ready", ready(corev1.ConditionFalse))
			resume()
			n.waitFor("pod to be Ready again", ready(corev1.ConditionTrue))
			n.checkRanOnce("stuck")
			n.removeManifest("stuck")
			n.waitNothingLeft()
		})
	}
}

// stopProcess sends SIGSTOP to a process. It continues when resume is called or the test ends.
func (n *node) stopProcess(pid int) (resume func()) {
	n.Helper()
	n.must("send SIGSTOP", syscall.Kill(pid, syscall.SIGSTOP))
	resume = sync.OnceFunc(func() { n.must("send SIGCONT", syscall.Kill(pid, syscall.SIGCONT)) })
	n.Cleanup(resume)
	return resume
}

// readinessWatch records statuses of Ready pods that are not Ready.
type readinessWatch struct {
	stop        context.CancelFunc
	wg          sync.WaitGroup
	mu          sync.Mutex
	transitions []string
}

// watchReady starts a readinessWatch for the pods named. It runs until finish.
func (n *node) watchReady(names []string) *readinessWatch {
	ctx, cancel := context.WithCancel(n.Context())
	f := &readinessWatch{stop: cancel}
	watched := map[string]bool{}
	for _, name := range names {
		watched[name] = true
	}
	f.wg.Go(func() {
		_ = n.client.WatchPods(ctx, nodeapi.PodsRequest{}, func(e nodeapi.PodEvent) error {
			if e.Pod == nil || !watched[e.Pod.Name] {
				return nil
			}
			for _, c := range e.Pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
					f.mu.Lock()
					f.transitions = append(f.transitions, fmt.Sprintf("%s %s: Ready=%s %s",
						time.Now().Format("15:04:05.000"), e.Pod.Name, c.Status, c.Message))
					f.mu.Unlock()
				}
			}
			return nil
		})
	})
	return f
}

// finish stops the watch and reports the recorded statuses as errors.
func (f *readinessWatch) finish(n *node) {
	n.Helper()
	f.stop()
	f.wg.Wait()
	for _, s := range f.transitions {
		n.Error(s)
	}
}
