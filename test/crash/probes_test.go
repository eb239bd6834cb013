package crash

import (
	"context"
	"fmt"
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

// probedPod is a pod whose containers are probed each second in every way. One
// command goes on for longer than the test, so that some is always under way.
func (n *node) probedPod(name string) *corev1.Pod {
	n.Helper()
	p := n.simple(name, "serve", "8080")
	each := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, FailureThreshold: 3, TimeoutSeconds: 2}
	}
	get := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/delay?d=200ms", Port: intstr.FromInt32(8080)}}
	tcp := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}
	run := func(steps ...string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: append([]string{"/bin/testbox"}, steps...)}}
	}
	c := &p.Spec.Containers[0]
	c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = each(tcp), each(get), each(tcp)
	c.StartupProbe.FailureThreshold = 60
	more := *c.DeepCopy()
	more.Name = "commands"
	more.Args = []string{"grpc", "9000"}
	more.StartupProbe = each(run("print", "up"))
	more.ReadinessProbe = each(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}})
	more.LivenessProbe = each(run("sleep", "700ms", ",", "print", name+"-alive"))
	more.LivenessProbe.TimeoutSeconds = 20
	more.LivenessProbe.FailureThreshold = 5
	more.StartupProbe.TimeoutSeconds, more.StartupProbe.FailureThreshold = 20, 60
	hangs := *c.DeepCopy()
	hangs.Name, hangs.Args = "hangs", []string{"sleep"}
	hangs.StartupProbe, hangs.ReadinessProbe = nil, nil
	hangs.LivenessProbe = each(run("sleep", "1h", ",", "print", name+longProbeMarker))
	hangs.LivenessProbe.TimeoutSeconds = 3600
	p.Spec.Containers = append(p.Spec.Containers, more, hangs)
	podspec.SetDefaults(p)
	return p
}

// longProbeMarker ends the command line of the command that goes on.
const longProbeMarker = "-goes-on"

// TestScenario10_KillsDuringProbesKeepReadiness: kill -9 of the agent at any
// moment, and a stop for longer than every timeout, while probes of every kind
// are under way. The commands that are it then do not pile up.
func TestScenario10_KillsDuringProbesKeepReadiness(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			names := []string{"one", "two", "three"}
			for _, name := range names {
				n.putPod(n.probedPod(name))
			}
			n.awaitRunning(names...)
			before, first := n.liveObjects(""), n.pods()
			for i := range 15 {
				flips := n.watchReady(names)
				time.Sleep(time.Duration(i*53) * time.Millisecond) // each time at another moment of the probes
				if i%5 == 4 {
					pid := n.agent.Pid()
					n.must("stop the agent's process", syscall.Kill(pid, syscall.SIGSTOP))
					time.Sleep(3500 * time.Millisecond) // longer than a timeout and two periods: that is what is tested
					n.must("let it go on", syscall.Kill(pid, syscall.SIGCONT))
				}
				flips.end(n)
				n.waitFor("a command of each pod to be under way", func() bool { return n.processes(longProbeMarker) == len(names) })
				cutOff := n.pids(longProbeMarker)
				n.kill()
				n.launch()
				flips = n.watchReady(names)
				n.awaitRunning(names...)
				n.waitFor("the agent to have looked", func() bool {
					for _, p := range n.pods() {
						if len(p.Status.ContainerStatuses) == 0 { // until then it shows what it remembers
							return false
						}
					}
					return true
				})
				flips.end(n)
				n.waitFor("the commands to be gone that nobody waits for", func() bool {
					return !slices.ContainsFunc(n.pids(longProbeMarker), func(pid string) bool { return slices.Contains(cutOff, pid) })
				})
				now := n.pods()
				for _, name := range names {
					was, is := first[name], now[name]
					n.compareStatus(&was, &is)
				}
				if t.Failed() {
					t.Fatalf("after %d kills", i+1)
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

// TestHungExecProbeFails: one that hangs with its shim does not
// keep its pod Ready for ever. A runtime that hangs altogether says nothing of a pod.
func TestHungExecProbeFails(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n := start(t, options{host: hosts.Options{Version: v}})
			p := n.simple("stuck")
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/testbox", "print", "fine"}}},
				PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 2,
			}
			n.putPod(p)
			n.awaitRunning("stuck")
			ready := func(want corev1.ConditionStatus) func() bool {
				return func() bool { p := n.pods()["stuck"]; return readyOf(&p).Status == want }
			}
			n.waitFor("the pod to be Ready", ready(corev1.ConditionTrue))
			shims := n.shims(n.sandboxes("stuck")[0].Id)
			if len(shims) != 1 {
				t.Fatalf("the shims are %v", shims)
			}
			flips := n.watchReady([]string{"stuck"})
			goOn := n.stopProcess(n.host.Pid())
			n.waitFor("a probe that could not be made", func() bool {
				probes, err := n.client.Probes(n.Context(), "default", "stuck")
				return err == nil && len(probes.Probes) == 1 && slices.ContainsFunc(probes.Probes[0].Recent, func(r nodeapi.ProbeRun) bool {
					return r.Result == "unknown" && strings.Contains(r.Output, "runtime interrupted the command")
				})
			})
			goOn()
			n.waitFor("the next to succeed", func() bool {
				probes, err := n.client.Probes(n.Context(), "default", "stuck")
				return err == nil && len(probes.Probes) == 1 && len(probes.Probes[0].Recent) > 0 && probes.Probes[0].Recent[0].Result == "success"
			})
			flips.end(n)
			goOn = n.stopProcess(shims[0])
			n.waitFor("the pod not to be Ready", ready(corev1.ConditionFalse))
			goOn()
			n.waitFor("the pod to be Ready again", ready(corev1.ConditionTrue))
			n.checkRanOnce("stuck")
			n.removeManifest("stuck")
			n.waitNothingLeft()
		})
	}
}

// stopProcess stops a process until goOn is called, or the test ends.
func (n *node) stopProcess(pid int) (goOn func()) {
	n.Helper()
	n.must("stop a process", syscall.Kill(pid, syscall.SIGSTOP))
	goOn = sync.OnceFunc(func() { n.must("let it go on", syscall.Kill(pid, syscall.SIGCONT)) })
	n.Cleanup(goOn)
	return goOn
}

// readinessWatch watches pods that are ready for not being ready.
type readinessWatch struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	seen []string
}

func (n *node) watchReady(names []string) *readinessWatch {
	ctx, cancel := context.WithCancel(n.Context())
	f := &readinessWatch{stop: cancel}
	ours := map[string]bool{}
	for _, name := range names {
		ours[name] = true
	}
	f.wg.Go(func() {
		_ = n.client.WatchPods(ctx, nodeapi.PodsRequest{}, func(e nodeapi.PodEvent) error {
			if e.Pod == nil || !ours[e.Pod.Name] {
				return nil
			}
			for _, c := range e.Pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
					f.mu.Lock()
					f.seen = append(f.seen, fmt.Sprintf("%s %s: Ready=%s %s", time.Now().Format("15:04:05.000"), e.Pod.Name, c.Status, c.Message))
					f.mu.Unlock()
				}
			}
			return nil
		})
	})
	return f
}

func (f *readinessWatch) end(n *node) {
	n.Helper()
	f.stop()
	f.wg.Wait()
	for _, s := range f.seen {
		n.Error(s)
	}
}
