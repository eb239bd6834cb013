package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// isShutDown reports whether the pod has the status of a pod terminated by a node shutdown and no
// running container.
func (l *agentFixture) isShutDown(pod *corev1.Pod) func() bool {
	return func() bool {
		s, ok := l.agent.StatusCache.Get(pod.UID)
		if !ok || s.Status.Phase != corev1.PodFailed || s.Status.Reason != "Terminated" ||
			len(l.host.RunningContainers(pod.UID)) != 0 ||
			s.Status.Message != "Pod was terminated in response to imminent node shutdown." {
			return false
		}
		return slices.ContainsFunc(s.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
				c.Reason == corev1.PodReasonTerminationByKubelet
		})
	}
}

// TestScenario26_StaticPodsRunAgainAfterReboot checks that pods terminated by a node shutdown stay
// terminated until the reboot, also after an agent restart. After the reboot static pods run again
// regardless of their restart policy and outcome. Pods of an API server stay failed, so that their
// controllers replace them.
func TestScenario26_StaticPodsRunAgainAfterReboot(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.boot = "first"
		static, once, apiPod := hostfake.StaticPod(hostfake.PodOf("static", "a", "b")),
			hostfake.StaticPod(hostfake.PodOf("once", "a")), hostfake.PodOf("api", "a")
		apiPod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		all := []*corev1.Pod{static, once, apiPod}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", all...)
		l.until(time.Minute, "all run", l.isRunning(all...))
		if l.agent.ShutdownPod(t.Context(), "unknown", time.Second) {
			t.Error("ShutdownPod succeeded for an unknown pod")
		}
		for _, pod := range all {
			if !l.agent.ShutdownPod(t.Context(), pod.UID, 5*time.Second) {
				t.Errorf("ShutdownPod did not find %s", pod.Name)
			}
		}
		terminated := func(l *agentFixture) func() bool {
			return func() bool { return l.isShutDown(static)() && l.isShutDown(once)() && l.isShutDown(apiPod)() }
		}
		l.until(time.Minute, "all pods are terminated", terminated(l))
		if s, _ := l.agent.StatusCache.Get(static.UID); s.Memory.Termination.Grace != 5*time.Second {
			t.Errorf("got grace period %v, want 5s", s.Memory.Termination.Grace)
		}
		l.stop()

		// an agent that restarts while the host shuts down
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", all...)
		l.until(time.Minute, "all pods are still terminated", terminated(l))
		time.Sleep(10 * time.Minute)
		if !terminated(l)() {
			t.Error("a pod was started again")
		}
		l.stop()

		h.boot = "second"
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", all...)
		l.until(30*time.Second, "the static pods run", l.isRunning(static, once))
		for _, pod := range []*corev1.Pod{static, once} {
			s, _ := l.agent.StatusCache.Get(pod.UID)
			if c := s.Status.ContainerStatuses[0]; c.RestartCount != 1 || s.Status.Reason != "" ||
				s.Termination != nil {
				t.Errorf("%s: %+v", pod.Name, s.Status)
			}
		}
		l.until(time.Minute, "the pod of the API server is still terminated", l.isShutDown(apiPod))
		time.Sleep(time.Minute) // all containers run
		l.stop()

		// After an agent restart in the same boot nothing changes.
		starts := h.CallCount("start uid-static")
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", all...)
		l.until(time.Minute, "the static pods run", l.isRunning(static, once))
		time.Sleep(10 * time.Minute)
		if n := h.CallCount("start uid-static"); n != starts || !l.isShutDown(apiPod)() {
			t.Errorf("got %d starts, want %d and a terminated API server pod", n, starts)
		}
		l.stop()
	})
}

// TestScenario26_NodeShuttingDownAdmitsNoPods checks that a static pod waits, and that a pod of an
// API server is rejected with the kubelet's message.
func TestScenario26_NodeShuttingDownAdmitsNoPods(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		node := hostfake.LargeNode()
		l := startAgent(t, h, node, nil, "file")
		node.ShuttingDown = true
		l.agent.SetNode(node)
		static, apiPod := hostfake.StaticPod(hostfake.PodOf("static", "a")), hostfake.PodOf("api", "a")
		apiPod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		l.desire("file", static, apiPod)
		l.until(time.Minute, "the pod of the API server is rejected", func() bool {
			s, ok := l.agent.StatusCache.Get(apiPod.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeShutdown" &&
				s.Status.Message == "Pod was rejected: Pod was rejected as the node is shutting down."
		})
		s, _ := l.agent.StatusCache.Get(static.UID)
		if s.Verdict.State != plan.Wait || s.Verdict.Reason != "NodeShutdown" || s.Status.Phase != corev1.PodPending {
			t.Errorf("the static pod has verdict %+v, want Wait", s.Verdict)
		}
		node.ShuttingDown = false // the shutdown was canceled
		l.agent.SetNode(node)
		l.until(time.Minute, "the static pod runs", l.isRunning(static))
		l.stop()
	})
}
