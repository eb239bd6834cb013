package crash

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/test/hosts"
)

// runtimeIDs are what calls about a pod contain: its name and UID, and the IDs of what
// it has in the runtime.
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

// TestScenario02_HangingCallBlocksNoOtherPod, verb by verb: while
// it hangs, others start and end as ever, and the pod goes on when it is over.
func TestScenario02_HangingCallBlocksNoOtherPod(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, p := startWithProxy(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("calm"))
			n.awaitRunning("calm")
			before := n.liveObjects("")
			others := func(name string) {
				t.Helper()
				n.putPod(n.simple(name))
				n.awaitRunning(name)
				n.checkRanOnce(name)
				n.removeManifest(name)
				n.waitFor(name+" to go", func() bool { return n.pods()[name].Name == "" })
				if !n.running("calm") {
					t.Error("a pod that nobody touched is not ready any more")
				}
			}
			for _, verb := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "PodSandboxStatus"} {
				name := "up-" + strings.ToLower(verb)
				p.set(&rule{verb: verb, fault: hang, times: 1}) // no other pod makes such a call just now
				n.putPod(n.simple(name))
				n.waitFor(verb+" to hang", func() bool { return p.hit() > 0 })
				others(fmt.Sprint("other-", len(n.agent.Log())))
				if !p.isHolding() { // the others may have waited for its deadline
					t.Errorf("%s hung no more when the other pod had come and gone", verb)
				}
				p.set()
				n.awaitRunning(name)
				n.checkRanOnce(name)
				n.removeManifest(name)
				n.waitFor(name+" to go", func() bool { return n.pods()[name].Name == "" })
			}
			down := func(name, verb string) (hung bool) {
				t.Helper()
				n.putPod(n.simple(name))
				n.awaitRunning(name)
				var rules []*rule
				for _, id := range n.runtimeIDs(name) {
					rules = append(rules, &rule{verb: verb, about: id, fault: hang})
				}
				p.set(rules...)
				n.removeManifest(name)
				n.waitFor(verb+" to hang, or the pod to go without", func() bool { return p.hit() > 0 || n.pods()[name].Name == "" })
				hung = p.hit() > 0
				others(fmt.Sprint("other-", len(n.agent.Log())))
				p.set()
				n.waitFor(name+" to go", func() bool { return n.pods()[name].Name == "" })
				return hung
			}
			for verb, tries := range map[string]int{
				"StopContainer": 1, "StopPodSandbox": 1, "RemovePodSandbox": 1,
				"RemoveContainer": 0, // removing the sandbox may do
				"ContainerStatus": 5, // an event may have reported the exit before any query
			} {
				hung := false
				for try := 0; !hung && try < max(1, tries); try++ {
					hung = down(fmt.Sprintf("down-%s-%d", strings.ToLower(verb), try), verb)
				}
				if !hung && tries > 0 {
					t.Errorf("%s was not asked of %d pods that ended", verb, tries)
				}
			}
			n.checkStillLive(before)
			n.checkRanOnce("calm")
			n.removeManifest("calm")
			n.waitNothingLeft()
		})
	}
}

// TestScenario16_PodThatCannotTerminateReportsWhy: its condition names what cannot be taken
// away and the runtime's own words, others come and go beside it, and it ends
// when the cause is gone.
func TestScenario16_PodThatCannotTerminateReportsWhy(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, p := startWithProxy(t, options{host: hosts.Options{Version: v}})
			n.putPod(n.simple("stuck"))
			n.awaitRunning("stuck")
			var rules []*rule
			for _, id := range n.runtimeIDs("stuck") {
				rules = append(rules, &rule{verb: "StopContainer", about: id, fault: fail}, &rule{verb: "StopPodSandbox", about: id, fault: fail})
			}
			p.set(rules...)
			n.removeManifest("stuck")
			n.waitFor("the condition", func() bool { return n.terminationBlockedMessage("stuck") != "" })
			if got := n.terminationBlockedMessage("stuck"); !strings.HasPrefix(got, "KillContainerError: container main cannot be stopped: ") || !strings.HasSuffix(got, "fails, as told") {
				t.Errorf("the condition is %q", got)
			}
			n.checkOutput([]string{"describe", "stuck"}, "TeardownIncomplete", "container main cannot be stopped: ", "FailedKillPod", "error killing container main")
			n.checkOutput([]string{"why", "stuck"}, "fails, as told")
			n.putPod(n.simple("other"))
			n.awaitRunning("other")
			n.removeManifest("other")
			n.waitFor("other to go", func() bool { return n.pods()["other"].Name == "" })
			n.kill() // the next agent comes to the same
			n.launch()
			n.waitFor("the condition of the next agent", func() bool { return n.terminationBlockedMessage("stuck") != "" })
			p.set()
			n.waitNothingLeft()
		})
	}
}

// terminationBlockedMessage is what a pod's condition says that keeps it from its end; empty:
// nothing does.
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

// TestScenario14_LostResponsesCauseNoDuplicatesOrLeaks: the runtime carries
// a call out and the agent gets an error for it, or it fails, time and again.
func TestScenario14_LostResponsesCauseNoDuplicatesOrLeaks(t *testing.T) {
	t.Parallel()
	for _, v := range hosts.Versions() {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			n, p := startWithProxy(t, options{host: hosts.Options{Version: v}})
			for _, f := range []fault{cut, fail} {
				for _, verb := range []string{"RunPodSandbox", "CreateContainer", "StartContainer"} {
					name := fmt.Sprintf("up-%d-%s", f, strings.ToLower(verb))
					about := name
					if verb == "StartContainer" {
						about = "" // it is the only pod, and nothing else starts
					}
					p.set(&rule{verb: verb, about: about, fault: f, times: 2})
					n.putPod(n.simple(name))
					n.awaitRunning(name)
					if p.hit() == 0 {
						t.Errorf("%s was never called", verb)
					}
					n.checkSingleInstance(name)
					n.removeManifest(name)
					n.waitNothingLeft()
				}
				for _, verb := range []string{"StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"} {
					name := fmt.Sprintf("down-%d-%s", f, strings.ToLower(verb))
					n.putPod(n.simple(name))
					n.awaitRunning(name)
					n.waitRan(name, "main") // Running is reported before the process has run far enough to report
					p.set(&rule{verb: verb, fault: f, times: 2})
					n.removeManifest(name)
					n.waitNothingLeft()
					p.set()
					if ran := n.startCount(name, "main"); ran != 1 {
						t.Errorf("%s ran %d times", name, ran)
					}
				}
			}
		})
	}
}

// checkSingleInstance checks that a pod runs once, whatever was tried before: one live
// sandbox, one live container, started once.
func (n *node) checkSingleInstance(name string) {
	n.Helper()
	live := map[string]int{}
	for _, what := range n.liveObjects(name) {
		if live[what]++; live[what] > 1 {
			n.Errorf("%s lives twice", what)
		}
	}
	if ran := n.waitRan(name, "main"); ran != 1 {
		n.Errorf("%s ran %d times", name, ran)
	}
	p := n.pods()[name]
	for _, s := range statuses(&p) {
		if s.RestartCount != 0 {
			n.Errorf("%s/%s has %d restarts", name, s.Name, s.RestartCount)
		}
	}
}
