package agent

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// An edit that keeps the UID recreates a finished pod, whether the agent runs at that time
// or not.
func TestEditRecreatesFinishedPod(t *testing.T) {
	image := func(c *corev1.Container) { c.Image = "another" }
	amount := func(c *corev1.Container) {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	}
	once := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		return pod
	}
	for _, c := range []struct {
		what   string
		pod    *corev1.Pod
		change func(*corev1.Container)
		before func(l *agentFixture, pod *corev1.Pod) // lets the pod finish
		phase  corev1.PodPhase
		reason string
	}{
		{"a rejected pod", hostfake.PodRequesting("p", "2000"), amount, nil, corev1.PodFailed, "OutOfcpu"},
		{"a failed pod", once(hostfake.PodOf("p", "a")), image, func(l *agentFixture, pod *corev1.Pod) {
			l.until(time.Second, "runs", l.isRunning(pod))
			l.host.Kill(pod.UID, "a", 3, false)
		}, corev1.PodFailed, ""},
		{"a succeeded pod", once(hostfake.PodRequesting("p", "1")), amount, func(l *agentFixture, pod *corev1.Pod) {
			l.until(time.Second, "runs", l.isRunning(pod))
			l.host.Kill(pod.UID, "a", 0, false)
		}, corev1.PodSucceeded, ""},
		{"a pod that exceeded its deadline", func() *corev1.Pod {
			pod := hostfake.PodOf("p", "a")
			pod.Spec.ActiveDeadlineSeconds = new(int64(5))
			return pod
		}(), image, nil, corev1.PodFailed, "DeadlineExceeded"},
		{"an evicted pod", hostfake.PodOf("p", "a"), image, func(l *agentFixture, pod *corev1.Pod) {
			l.until(time.Second, "runs", l.isRunning(pod))
			l.agent.EvictPod(l.t.Context(), pod.UID, &plan.Eviction{Message: "for the test"})
		}, corev1.PodFailed, "Evicted"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(c.what, func(t *testing.T) {
				withHost(t, func(t *testing.T, h *testHost) {
					pod := hostfake.FilePod(c.pod.DeepCopy())
					l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
					l.desire("file", pod)
					if c.before != nil {
						c.before(l, pod)
					}
					l.until(time.Minute, "the pod has finished", func() bool {
						s, ok := l.agent.StatusCache.Get(pod.UID)
						return ok && s.Status.Phase == c.phase && s.Status.Reason == c.reason
					})
					next := hostfake.EditedPod(pod, c.change)
					if restart {
						l.stop()
						l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
					}
					l.desire("file", next)
					l.until(time.Minute, "the edited pod runs", func() bool {
						s, ok := l.agent.StatusCache.Get(pod.UID)
						return l.isRunning(pod)() && ok && s.Pod == next && s.Termination == nil &&
							s.Status.Reason == ""
					})
					if s, _ := l.agent.StatusCache.Get(pod.UID); s.Status.ContainerStatuses[0].RestartCount != 0 {
						t.Errorf("the restart count of the previous pod was kept: %+v", s.Status.ContainerStatuses[0])
					}
				})
			})
		}
	}
}

// A finished pod of an API server stays finished regardless of changes of its object. So does a
// static pod whose manifest was not edited.
func TestOnlyManifestEditRecreatesPod(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		static, apiPod := hostfake.FilePod(hostfake.PodOf("static", "a")), hostfake.PodOf("api", "a")
		for _, pod := range []*corev1.Pod{static, apiPod} {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		}
		apiPod.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", static, apiPod)
		l.until(time.Second, "both run", l.isRunning(static, apiPod))
		h.Kill(static.UID, "a", 3, false)
		h.Kill(apiPod.UID, "a", 3, false)
		failed := func(pod *corev1.Pod) bool {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Termination == nil
		}
		l.until(time.Minute, "both pods have failed", func() bool { return failed(static) && failed(apiPod) })
		l.desire("file", static.DeepCopy(), hostfake.EditedPod(apiPod, func(c *corev1.Container) {
			c.Image = "another"
		}))
		time.Sleep(time.Minute)
		synctest.Wait()
		if !failed(static) || !failed(apiPod) || h.CallCount("start") != 2 {
			t.Errorf("a pod was started again: %v", h.Calls)
		}
	})
}
