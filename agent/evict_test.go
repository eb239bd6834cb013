package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestEvictedPodStaysFailedUntilManifestChanges(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		pod := hostfake.PodOf("p", "a")
		pod.Spec.Volumes = []corev1.Volume{{
			Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
		}}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pod)
		l.until(time.Minute, "p runs", l.isRunning(pod))
		if l.agent.EvictPod(t.Context(), "unknown", &plan.Eviction{Message: "full"}) {
			t.Error("EvictPod succeeded for an unknown pod")
		}
		if !l.agent.EvictPod(t.Context(), pod.UID, &plan.Eviction{Message: "full"}) {
			t.Error("EvictPod did not find the pod")
		}
		failed := func(l *agentFixture) func() bool {
			return func() bool {
				s, ok := l.agent.StatusCache.Get(pod.UID)
				return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted" &&
					s.Status.Message == "full" &&
					len(s.Observed.Volumes) == 0 && len(h.RunningContainers(pod.UID)) == 0
			}
		}
		l.until(time.Minute, "the pod has failed and its volume is unmounted", failed(l))
		// not the pod's own 30 s
		if s, _ := l.agent.StatusCache.Get(pod.UID); s.Memory.Termination.Grace != time.Second {
			t.Errorf("got grace period %v, want 1s", s.Memory.Termination.Grace)
		}
		count := 0
		for _, e := range l.agent.Events.List(pod.UID) {
			if e.Reason == "Evicted" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "full") {
				count++
			}
		}
		if count != 1 {
			t.Errorf("got %d Evicted events, want 1", count)
		}
		l.stop()

		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", pod)
		l.until(time.Minute, "the pod is still failed", failed(l))
		time.Sleep(10 * time.Minute)
		if !failed(l)() {
			t.Error("the evicted pod was started again")
		}
		edited := withUID(pod, "uid-p-2")
		l.desire("file", edited)
		l.until(time.Minute, "the edited pod runs", l.isRunning(edited))
		l.until(time.Minute, "the evicted pod is deleted", l.isDeleted(pod.UID))
		l.stop()
	})
}

func TestCriticalPodPreemptsOthers(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.NodeOf("4", "10"), nil, "file")
		small, big, system := hostfake.PodRequesting("small", "1"), hostfake.PodRequesting("big", "3"),
			hostfake.PodRequesting("system", "1")
		system.Spec.Priority = new(int32(2_000_000_000))
		l.desire("file", small, big)
		l.until(time.Minute, "both run", func() bool { return l.isRunning(small)() && l.isRunning(big)() })
		l.desire("file", small, big, system)
		l.until(time.Minute, "the critical pod runs", l.isRunning(system))
		check := func(l *agentFixture) {
			t.Helper()
			s, ok := l.agent.StatusCache.Get(small.UID)
			if !ok || s.Status.Phase != corev1.PodFailed || s.Status.Reason != "Preempting" ||
				len(h.RunningContainers(small.UID)) != 0 || !l.isRunning(big)() {
				t.Errorf("got %+v, want a preempted pod", s)
			}
		}
		check(l)
		eventCount := func(pod *corev1.Pod, kind, words string) (n int) {
			for _, e := range l.agent.Events.List(pod.UID) {
				if e.Reason == "Preempting" && e.Type == kind && strings.Contains(e.Message, words) {
					n++
				}
			}
			return n
		}
		if eventCount(small, corev1.EventTypeWarning, "Preempted in order to admit critical pod default/system") != 1 ||
			eventCount(system, corev1.EventTypeNormal, "default/small") != 1 {
			t.Errorf("events of the preempted pod: %+v\nof the critical pod: %+v", l.agent.Events.List(small.UID),
				l.agent.Events.List(system.UID))
		}
		l.stop()

		l = startAgent(t, h, hostfake.NodeOf("4", "10"), l.records, "file")
		l.desire("file", small, big, system)
		l.until(time.Minute, "both run", func() bool { return l.isRunning(system)() && l.isRunning(big)() })
		time.Sleep(time.Minute)
		check(l)
		l.stop()
	})
}

// A static pod that was evicted for the node returns, because no controller recreates it.
// The back-off grows, and it waits until the node has no pressure. A pod that exceeded its
// own limits stays failed.
func TestEvictedStaticPodReturns(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		node := hostfake.LargeNode()
		pod, overLimit, once, apiPod := hostfake.StaticPod(hostfake.PodOf("p", "a")),
			hostfake.StaticPod(hostfake.PodOf("over-limit", "a")), hostfake.StaticPod(hostfake.PodOf("once", "a")),
			hostfake.PodOf("api", "a")
		once.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		all := []*corev1.Pod{pod, overLimit, once, apiPod}
		l := startAgent(t, h, node, nil, "file")
		l.desire("file", all...)
		l.until(time.Minute, "all run", l.isRunning(all...))
		for _, p := range all[1:] {
			l.agent.EvictPod(t.Context(), p.UID, &plan.Eviction{Message: "full", NodeCaused: p != overLimit})
		}
		failed := func(p *corev1.Pod) func() bool {
			return func() bool {
				s, ok := l.agent.StatusCache.Get(p.UID)
				return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "Evicted"
			}
		}
		for _, wait := range []int{1, 2, 4, 8, 10, 10} {
			at := time.Now()
			l.agent.EvictPod(t.Context(), pod.UID, &plan.Eviction{Message: "full", NodeCaused: true})
			l.until(10*time.Second, "the pod has failed", failed(pod))
			l.until(time.Hour, "the pod runs again", l.isRunning(pod))
			if took := time.Since(at).Round(time.Minute); took != time.Duration(wait)*time.Minute {
				t.Errorf("the pod ran again after %s, want %d min", took, wait)
			}
		}
		if !slices.ContainsFunc(l.agent.Events.List(pod.UID), func(e corev1.Event) bool {
			return e.Reason == "Evicted"
		}) {
			t.Errorf("no Evicted event after the recreation: %+v", l.agent.Events.List(pod.UID))
		}
		time.Sleep(11 * time.Minute) // a long run resets the back-off
		node.PressureConditions = []corev1.NodeConditionType{corev1.NodeDiskPressure}
		l.agent.SetNode(node)
		l.agent.EvictPod(t.Context(), pod.UID, &plan.Eviction{Message: "full", NodeCaused: true})
		l.until(10*time.Second, "the pod has failed", failed(pod))
		time.Sleep(20 * time.Minute)
		if !failed(pod)() {
			t.Error("the pod runs while the node is under pressure")
		}
		l.stop()
		l = startAgent(t, h, node, l.records, "file") // also after an agent restart
		l.agent.SetNode(node)
		l.desire("file", all...)
		l.until(10*time.Second, "the pod is still failed", failed(pod))
		node.PressureConditions = nil
		l.agent.SetNode(node)
		l.until(10*time.Second, "the pod runs again", l.isRunning(pod))
		for _, p := range all[1:] {
			if !failed(p)() {
				t.Errorf("%s was started again", p.Name)
			}
		}
		l.stop()
	})
}

// TestPreemptedStaticPodWaitsForResources checks that a recreated pod waits for resources.
func TestPreemptedStaticPodWaitsForResources(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.standalone = true
		l := startAgent(t, h, hostfake.NodeOf("4", "10"), nil, "file")
		small, big, system := hostfake.StaticPod(hostfake.PodRequesting("small", "1")),
			hostfake.StaticPod(hostfake.PodRequesting("big", "3")),
			hostfake.StaticPod(hostfake.PodRequesting("system", "1"))
		system.Spec.Priority = new(int32(2_000_000_000))
		l.desire("file", small, big)
		l.until(time.Minute, "both run", l.isRunning(small, big))
		l.desire("file", small, big, system)
		l.until(time.Minute, "the critical pod runs", l.isRunning(system))
		if s, _ := l.agent.StatusCache.Get(small.UID); s.Status.Reason != "Preempting" {
			t.Fatalf("got %+v, want reason Preempting", s.Status)
		}
		l.until(2*time.Minute, "the preempted pod waits for resources", func() bool {
			s, ok := l.agent.StatusCache.Get(small.UID)
			return ok && s.Status.Phase == corev1.PodPending && s.Verdict.Reason == "OutOfcpu"
		})
		time.Sleep(10 * time.Minute)
		l.desire("file", small, big)
		l.until(time.Minute, "both run", l.isRunning(small, big))
		l.stop()
	})
}
