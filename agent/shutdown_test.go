package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// shutDown reports whether a pod shows that it was ended with its node, and nothing
// of it runs.
func (l *life) shutDown(pod *corev1.Pod) func() bool {
	return func() bool {
		s, ok := l.a.StatusCache.Get(pod.UID)
		if !ok || s.Status.Phase != corev1.PodFailed || s.Status.Reason != "Terminated" || len(l.h.running(pod.UID)) != 0 ||
			s.Status.Message != "Pod was terminated in response to imminent node shutdown." {
			return false
		}
		return slices.ContainsFunc(s.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
		})
	}
}

// TestScenario26_PodsThatNobodyMakesAnewRunAgainAfterTheBoot: what a shutdown has ended
// stays ended for as long as that kernel runs, whatever becomes of the agent; after the
// boot pods of files run again, whatever their policy and whatever they came to, and
// pods of a server stay failed, for their controllers to see.
func TestScenario26_PodsThatNobodyMakesAnewRunAgainAfterTheBoot(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.boot = "first"
		filed, once, served := static(podOf("filed", "a", "b")), static(podOf("once", "a")), podOf("served", "a")
		served.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		all := []*corev1.Pod{filed, once, served}
		l := live(t, h, roomyNode(), nil, "file")
		l.want("file", all...)
		l.until(time.Minute, "all run", l.runs(all...))
		if l.a.ShutdownPod(t.Context(), "nobody", time.Second) {
			t.Error("somebody was told")
		}
		for _, pod := range all {
			if !l.a.ShutdownPod(t.Context(), pod.UID, 5*time.Second) {
				t.Errorf("%s is not known", pod.Name)
			}
		}
		ended := func(l *life) func() bool {
			return func() bool { return l.shutDown(filed)() && l.shutDown(once)() && l.shutDown(served)() }
		}
		l.until(time.Minute, "all have ended", ended(l))
		if s, _ := l.a.StatusCache.Get(filed.UID); s.Memory.End.Grace != 5*time.Second {
			t.Errorf("it had %v", s.Memory.End.Grace)
		}
		l.leaving()

		l = live(t, h, roomyNode(), l.records, "file") // an agent that begins anew while the host goes down
		l.want("file", all...)
		l.until(time.Minute, "all are still ended", ended(l))
		time.Sleep(10 * time.Minute)
		if !ended(l)() {
			t.Error("one was started again")
		}
		l.leaving()

		h.boot = "second"
		l = live(t, h, roomyNode(), l.records, "file")
		l.want("file", all...)
		l.until(30*time.Second, "those of files run", l.runs(filed, once))
		for _, pod := range []*corev1.Pod{filed, once} {
			s, _ := l.a.StatusCache.Get(pod.UID)
			if c := s.Status.ContainerStatuses[0]; c.RestartCount != 1 || s.Status.Reason != "" || s.End != nil {
				t.Errorf("%s: %+v", pod.Name, s.Status)
			}
		}
		l.until(time.Minute, "the server's is still ended", l.shutDown(served))
		time.Sleep(time.Minute) // all containers run
		l.leaving()

		// A new agent of the same boot has nothing to mend.
		starts := h.happened("start uid-filed")
		l = live(t, h, roomyNode(), l.records, "file")
		l.want("file", all...)
		l.until(time.Minute, "they run", l.runs(filed, once))
		time.Sleep(10 * time.Minute)
		if n := h.happened("start uid-filed"); n != starts || !l.shutDown(served)() {
			t.Errorf("%d starts, %d before", n, starts)
		}
		l.leaving()
	})
}

// TestScenario26_ANodeThatGoesDownTakesNoPods: a pod of a file waits for the boot, one of
// a server is rejected in the kubelet's words.
func TestScenario26_ANodeThatGoesDownTakesNoPods(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		node := roomyNode()
		l := live(t, h, node, nil, "file")
		node.ShuttingDown = true
		l.a.SetNode(node)
		filed, served := static(podOf("filed", "a")), podOf("served", "a")
		served.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		l.want("file", filed, served)
		l.until(time.Minute, "the server's is rejected", func() bool {
			s, ok := l.a.StatusCache.Get(served.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeShutdown" &&
				s.Status.Message == "Pod was rejected: Pod was rejected as the node is shutting down."
		})
		s, _ := l.a.StatusCache.Get(filed.UID)
		if s.Verdict.State != plan.Wait || s.Verdict.Reason != "NodeShutdown" || s.Status.Phase != corev1.PodPending {
			t.Errorf("the file's: %+v", s.Verdict)
		}
		node.ShuttingDown = false // it was called off
		l.a.SetNode(node)
		l.until(time.Minute, "it runs", l.runs(filed))
		l.leaving()
	})
}
