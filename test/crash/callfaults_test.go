package crash

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/test/hosts"
)

// runtimeIDs returns the strings that identify a pod in CRI requests: its name and the IDs of its
// sandboxes and containers.
func (n *node) runtimeIDs(pod string) []string {
	n.Helper()
	ids := []string{pod}
	for _, s := range n.sandboxes(pod) {
		ids = append(ids, s.Id)
	}
	for _, c := range n.containers(pod) {
		ids = append(ids, c.Id)
	}
	return ids
}

// TestScenario02_HangingCallBlocksNoOtherPod: while a CRI call of one pod hangs, other pods start and
// terminate. The pod continues when the call returns. The test repeats this for each CRI method.
func TestScenario02_HangingCallBlocksNoOtherPod(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, p := startWithProxy(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("stable"))
			n.awaitRunning("stable")
			n.timeout = unblockedTimeout
			before := n.liveObjects("")
			checkOtherPods := func(name string) {
				t.Helper()
				n.putPod(n.simple(name))
				n.awaitRunning(name)
				n.checkRanOnce(name)
				n.removeManifest(name)
				n.waitFor("pod "+name+" to be deleted", func() bool { return n.pods()[name].Name == "" })
				if !n.running("stable") {
					t.Error("pod stable is not Ready, but only other pods changed")
				}
			}
			for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "PodSandboxStatus"} {
				name := "up-" + strings.ToLower(method)
				p.set(&rule{method: method, fault: hang, times: 1}) // no other pod makes this call at the moment
				n.putPod(n.simple(name))
				n.waitFor(method+" to hang", func() bool { return p.hitCount() > 0 })
				checkOtherPods(fmt.Sprint("other-", len(n.agent.Log())))
				if !p.isHanging() { // otherwise the other pods may have waited for its deadline
					t.Errorf("%s returned before the other pod was started and deleted", method)
				}
				p.set()
				n.awaitRunning(name)
				n.checkRanOnce(name)
				n.removeManifest(name)
				n.waitFor("pod "+name+" to be deleted", func() bool { return n.pods()[name].Name == "" })
			}
			terminatePod := func(name, method string) (hung bool) {
				t.Helper()
				n.putPod(n.simple(name))
				n.awaitRunning(name)
				var rules []*rule
				for _, id := range n.runtimeIDs(name) {
					rules = append(rules, &rule{method: method, contains: id, fault: hang})
				}
				p.set(rules...)
				n.removeManifest(name)
				n.waitFor(method+" to hang or the pod to be deleted",
					func() bool { return p.hitCount() > 0 || n.pods()[name].Name == "" })
				hung = p.hitCount() > 0
				checkOtherPods(fmt.Sprint("other-", len(n.agent.Log())))
				p.set()
				n.waitFor("pod "+name+" to be deleted", func() bool { return n.pods()[name].Name == "" })
				return hung
			}
			for method, attempts := range map[string]int{
				"StopContainer": 1, "StopPodSandbox": 1, "RemovePodSandbox": 1,
				"RemoveContainer": 0, // RemovePodSandbox removes containers too
				"ContainerStatus": 5, // an event may have reported the exit before any query
			} {
				hung := false
				for attempt := 0; !hung && attempt < max(1, attempts); attempt++ {
					hung = terminatePod(fmt.Sprintf("down-%s-%d", strings.ToLower(method), attempt), method)
				}
				if !hung && attempts > 0 {
					t.Errorf("%s was not called for any of %d terminated pods", method, attempts)
				}
			}
			n.checkStillLive(before)
			n.checkRanOnce("stable")
			n.removeManifest("stable")
			n.waitNothingLeft()
		})
	}
}

// TestScenario16_PodThatCannotTerminateReportsWhy: the condition of the pod names the object that
// cannot be stopped and contains the runtime's error. Other pods start and terminate meanwhile. The pod
// terminates when the fault is removed.
func TestScenario16_PodThatCannotTerminateReportsWhy(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, p := startWithProxy(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("stuck"))
			n.awaitRunning("stuck")
			var rules []*rule
			for _, id := range n.runtimeIDs("stuck") {
				rules = append(rules, &rule{method: "StopContainer", contains: id, fault: fail},
					&rule{method: "StopPodSandbox", contains: id, fault: fail})
			}
			p.set(rules...)
			n.removeManifest("stuck")
			n.waitFor("condition TeardownIncomplete", func() bool { return n.terminationBlockedMessage("stuck") != "" })
			if got := n.terminationBlockedMessage("stuck"); !strings.HasPrefix(got,
				"KillContainerError: container main cannot be stopped: ") || !strings.HasSuffix(got, "injected fault") {
				t.Errorf("condition: got %q", got)
			}
			n.checkOutput([]string{"describe", "stuck"}, "TeardownIncomplete", "container main cannot be stopped: ",
				"FailedKillPod", "error killing container main")
			n.checkOutput([]string{"why", "stuck"}, "injected fault")
			n.putPod(n.simple("other"))
			n.awaitRunning("other")
			n.removeManifest("other")
			n.waitFor("pod other to be deleted", func() bool { return n.pods()["other"].Name == "" })
			n.kill() // the next agent reports the same condition
			n.launch()
			n.waitFor("condition TeardownIncomplete after the agent restart",
				func() bool { return n.terminationBlockedMessage("stuck") != "" })
			p.set()
			n.waitNothingLeft()
		})
	}
}

// terminationBlockedMessage returns the reason and message of a pod's TeardownIncomplete condition.
// It returns an empty string if the condition is not True.
func (n *node) terminationBlockedMessage(pod string) string {
	n.Helper()
	p := n.pods()[pod]
	for _, c := range p.Status.Conditions {
		if c.Type == plan.TeardownIncomplete && c.Status == corev1.ConditionTrue {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// TestScenario14_LostResponsesCauseNoDuplicatesOrLeaks: a CRI call fails repeatedly, or the runtime
// executes it and the agent gets an error instead of the response.
func TestScenario14_LostResponsesCauseNoDuplicatesOrLeaks(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.DividedVersions(t.Name()) {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, p := startWithProxy(t, options{host: hosts.Options{Version: v}})
			for _, f := range []fault{dropResponse, fail} {
				for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
					name := fmt.Sprintf("up-%d-%s", f, strings.ToLower(method))
					contains := name
					if method == "StartContainer" {
						contains = "" // the request contains only a container ID; no other container starts
					}
					p.set(&rule{method: method, contains: contains, fault: f, times: 2})
					n.putPod(n.simple(name))
					n.awaitRunning(name)
					if p.hitCount() == 0 {
						t.Errorf("%s was never called", method)
					}
					n.checkSingleInstance(name)
					n.removeManifest(name)
					n.waitNothingLeft()
				}
				for _, method := range []string{"StopContainer", "RemoveContainer", "StopPodSandbox",
					"RemovePodSandbox"} {
					name := fmt.Sprintf("down-%d-%s", f, strings.ToLower(method))
					n.putPod(n.simple(name))
					n.awaitRunning(name)
					n.waitRan(name, "main") // the pod is Running before the process has written the witness file
					p.set(&rule{method: method, fault: f, times: 2})
					n.removeManifest(name)
					n.waitNothingLeft()
					p.set()
					if ran := n.startCount(name, "main"); ran != 1 {
						t.Errorf("pod %s: container main started %d times, want 1", name, ran)
					}
				}
			}
		})
	}
}

// checkSingleInstance checks that a pod has one ready sandbox and one running container, which started
// once, regardless of failed attempts.
func (n *node) checkSingleInstance(name string) {
	n.Helper()
	live := map[string]int{}
	for _, what := range n.liveObjects(name) {
		if live[what]++; live[what] > 1 {
			n.Errorf("%s: %d instances, want 1", what, live[what])
		}
	}
	if ran := n.waitRan(name, "main"); ran != 1 {
		n.Errorf("pod %s: container main started %d times, want 1", name, ran)
	}
	p := n.pods()[name]
	for _, s := range statuses(&p) {
		if s.RestartCount != 0 {
			n.Errorf("%s/%s: restart count %d, want 0", name, s.Name, s.RestartCount)
		}
	}
}
