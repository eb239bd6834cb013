package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

// TestImportedImageIsNoticed checks that a pod that waits for an image notices its import within
// seconds, and that the checks neither observe anything else nor notify subscribers.
func TestImportedImageIsNoticed(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod, idle := hostfake.PodOf("p", "a", "b"), hostfake.PodOf("idle", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod, idle)
		l.until(time.Second, "the other pod runs", l.isRunning(idle))
		time.Sleep(time.Minute)
		changed, stop := l.agent.StatusCache.Subscribe()
		defer stop()
		h.Mu.Lock()
		checks, observations := h.ImageChecks["p-a"], h.Count["observeHost uid-p"]
		others := h.ImageChecks["idle-a"]
		h.Mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		select {
		case <-changed:
			t.Error("subscribers were notified of an image that is still absent")
		default:
		}
		h.Mu.Lock()
		if n := h.ImageChecks["p-a"] - checks; n < 115 || n > 121 {
			t.Errorf("got %d image checks in 10 minutes, want one every 5 s", n)
		}
		if n := h.Count["observeHost uid-p"] - observations; n != 0 {
			t.Errorf("got %d host observations, want 0", n)
		}
		if n := h.ImageChecks["idle-a"] - others; n != 0 {
			t.Errorf("got %d image checks for a running pod, want 0", n)
		}
		h.HasImage["p-a"] = true
		h.Mu.Unlock()
		l.until(5100*time.Millisecond, "the pod runs", l.isRunning(pod))
		if spans := l.spans(pod.UID); len(spans) > 10 {
			t.Errorf("the image checks are on the timeline: %q", spans)
		}
	})
}

// TestImportedImageIsUsedImmediately checks that a reported import triggers a check before the next
// periodic one.
func TestImportedImageIsUsedImmediately(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod)
		checkCount := func() int {
			h.Mu.Lock()
			defer h.Mu.Unlock()
			return h.ImageChecks["p-a"]
		}
		time.Sleep(time.Minute)
		before := checkCount()
		l.until(6*time.Second, "the image was checked", func() bool { return checkCount() > before })
		h.Mu.Lock()
		h.HasImage["p-a"] = true
		h.Mu.Unlock()
		l.agent.ImagesImported()
		l.until(4*time.Second, "the pod runs before the next periodic check", l.isRunning(pod))
	})
}

// The next start uses the image that a moved tag refers to, in a running pod and in a new
// one. No container is restarted for it.
func TestMovedTagIsFollowed(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.HasImage["p-a"], h.HasImage["p-b"] = true, true
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a", "b")
		pod.Spec.Containers[1].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod)
		l.until(time.Second, "runs", l.isRunning(pod))
		runs := func(name, image string, attempt uint32) func() bool {
			return func() bool {
				h.Mu.Lock()
				defer h.Mu.Unlock()
				return slices.ContainsFunc(h.StateOf(pod.UID).Containers, func(k plan.Container) bool {
					return k.Name == name && k.State == plan.Running && k.Attempt == attempt && k.Image == image
				})
			}
		}
		h.Mu.Lock()
		h.MovedTags["p-a"], h.MovedTags["p-b"] = "@2", "@2"
		h.Mu.Unlock()
		l.agent.ImagesImported()
		time.Sleep(time.Minute)
		if n := h.CallCount("start"); n != 2 {
			t.Errorf("got %d restarts after a moved tag, want 0", n-2)
		}
		for _, c := range []string{"a", "b"} {
			h.Kill(pod.UID, c, 1, false)
			l.until(time.Minute, "a restart uses the new image", runs(c, "sha:p-"+c+"@2", 1))
		}
		l.desire("file")
		l.until(time.Minute, "the pod is deleted", l.isDeleted(pod.UID))
		h.Mu.Lock()
		h.MovedTags["p-a"] = "@3"
		h.Mu.Unlock()
		l.desire("file", pod)
		l.until(time.Minute, "a new pod uses the new image", runs("a", "sha:p-a@3", 0))
		if n := h.CallCount("pull"); n != 0 {
			t.Errorf("got %d pulls of images that are present, want 0", n)
		}
	})
}

// TestUninspectableImageIsNotReportedAbsent checks the pull policy Never. The image is used as soon
// as it can be inspected.
func TestUninspectableImageIsNotReportedAbsent(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.HasImage["p-a"], h.ImageError = true, "connection refused"
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod)
		waitingReason := func() string {
			if s, ok := l.agent.StatusCache.Get(pod.UID); ok && len(s.Status.ContainerStatuses) > 0 &&
				s.Status.ContainerStatuses[0].State.Waiting != nil {
				return s.Status.ContainerStatuses[0].State.Waiting.Reason
			}
			return ""
		}
		l.until(time.Second, "the inspection error is reported", func() bool {
			return waitingReason() == "ImageInspectError"
		})
		h.Mu.Lock()
		h.ImageError = ""
		h.Mu.Unlock()
		l.until(6*time.Second, "the pod runs", l.isRunning(pod))
		if counts := l.events(pod.UID); counts["ErrImageNeverPull"] != 0 {
			t.Errorf("got events %v, want no ErrImageNeverPull", counts)
		}
	})
}
