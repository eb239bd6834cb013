package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// isShutDown reports whether a pod shows that it was ended with its node, and nothing
// of it runs.
func (l *agentFixture) isShutDown(pod *corev1.Pod) func() bool {
	return func() bool {
		s, ok := l.agent.StatusCache.Get(pod.UID)
		if !ok || s.Status.Phase != corev1.PodFailed || s.Status.Reason != "Terminated" || len(l.host.RunningContainers(pod.UID)) != 0 ||
			s.Status.Message != "Pod was terminated in response to imminent node shutdown." {
			return false
		}
		return slices.ContainsFunc(s.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
		})
	}
}

// TestScenario26_StaticPodsRunAgainAfterReboot: what a shutdown has ended
// stays ended for as long as that kernel runs, whatever becomes of the agent; after the
// boot pods of files run again, whatever their policy and whatever they came to, and
// pods of a server stay failed, for their controllers to see.
func TestScenario26_StaticPodsRunAgainAfterReboot(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.boot = "first"
		filed, once, served := hostfake.StaticPod(hostfake.PodOf("filed", "a", "b")), hostfake.StaticPod(hostfake.PodOf("once", "a")), hostfake.PodOf("served", "a")
		served.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		all := []*corev1.Pod{filed, once, served}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", all...)
		l.until(time.Minute, "all run", l.isRunning(all...))
		if l.agent.ShutdownPod(t.Context(), "nobody", time.Second) {
			t.Error("somebody was told")
		}
		for _, pod := range all {
			if !l.agent.ShutdownPod(t.Context(), pod.UID, 5*time.Second) {
				t.Errorf("%s is not known", pod.Name)
			}
		}
		ended := func(l *agentFixture) func() bool {
			return func() bool { return l.isShutDown(filed)() && l.isShutDown(once)() && l.isShutDown(served)() }
		}
		l.until(time.Minute, "all have ended", ended(l))
		if s, _ := l.agent.StatusCache.Get(filed.UID); s.Memory.Termination.Grace != 5*time.Second {
			t.Errorf("it had %v", s.Memory.Termination.Grace)
		}
		l.stop()

		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file") // an agent that restarts while the host shuts down
		l.desire("file", all...)
		l.until(time.Minute, "all are still ended", ended(l))
		time.Sleep(10 * time.Minute)
		if !ended(l)() {
			t.Error("a pod was started again")
		}
		l.stop()

		h.boot = "second"
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", all...)
		l.until(30*time.Second, "those of files run", l.isRunning(filed, once))
		for _, pod := range []*corev1.Pod{filed, once} {
			s, _ := l.agent.StatusCache.Get(pod.UID)
			if c := s.Status.ContainerStatuses[0]; c.RestartCount != 1 || s.Status.Reason != "" || s.Termination != nil {
				t.Errorf("%s: %+v", pod.Name, s.Status)
			}
		}
		l.until(time.Minute, "the server's is still ended", l.isShutDown(served))
		time.Sleep(time.Minute) // all containers run
		l.stop()

		// After an agent restart in the same boot nothing changes.
		starts := h.Happened("start uid-filed")
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", all...)
		l.until(time.Minute, "they run", l.isRunning(filed, once))
		time.Sleep(10 * time.Minute)
		if n := h.Happened("start uid-filed"); n != starts || !l.isShutDown(served)() {
			t.Errorf("%d starts, %d before", n, starts)
		}
		l.stop()
	})
}

// TestScenario26_NodeShuttingDownAdmitsNoPods: a pod of a file waits for the boot, one of
// a server is rejected in the kubelet's words.
func TestScenario26_NodeShuttingDownAdmitsNoPods(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		node := hostfake.LargeNode()
		l := startAgent(t, h, node, nil, "file")
		node.ShuttingDown = true
		l.agent.SetNode(node)
		filed, served := hostfake.StaticPod(hostfake.PodOf("filed", "a")), hostfake.PodOf("served", "a")
		served.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		l.desire("file", filed, served)
		l.until(time.Minute, "the server's is rejected", func() bool {
			s, ok := l.agent.StatusCache.Get(served.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeShutdown" &&
				s.Status.Message == "Pod was rejected: Pod was rejected as the node is shutting down."
		})
		s, _ := l.agent.StatusCache.Get(filed.UID)
		if s.Verdict.State != plan.Wait || s.Verdict.Reason != "NodeShutdown" || s.Status.Phase != corev1.PodPending {
			t.Errorf("the file's: %+v", s.Verdict)
		}
		node.ShuttingDown = false // it was called off
		l.agent.SetNode(node)
		l.until(time.Minute, "it runs", l.isRunning(filed))
		l.stop()
	})
}
