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

// TestImportedImageIsNoticed within seconds, by the pod that waits for it,
// which asks for nothing else meanwhile and does not tell watchers each time.
func TestImportedImageIsNoticed(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod, idle := hostfake.PodOf("p", "a", "b"), hostfake.PodOf("idle", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod, idle)
		l.until(time.Second, "the other runs", l.isRunning(idle))
		time.Sleep(time.Minute)
		changed, stop := l.agent.StatusCache.Subscribe()
		defer stop()
		h.Mu.Lock()
		asked, looks := h.ImageChecks["p-a"], h.Count["lookAtHost uid-p"]
		others := h.ImageChecks["idle-a"]
		h.Mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		select {
		case <-changed:
			t.Error("watchers were notified of an image that is still absent")
		default:
		}
		h.Mu.Lock()
		if n := h.ImageChecks["p-a"] - asked; n < 115 || n > 121 {
			t.Errorf("the node was asked %d times in ten minutes, want once in 5 s", n)
		}
		if n := h.Count["lookAtHost uid-p"] - looks; n != 0 {
			t.Errorf("the host was looked at %d times", n)
		}
		if n := h.ImageChecks["idle-a"] - others; n != 0 {
			t.Errorf("the node was asked %d times for what is running", n)
		}
		h.HasImage["p-a"] = true
		h.Mu.Unlock()
		l.until(5100*time.Millisecond, "it runs", l.isRunning(pod))
		if spans := l.spans(pod.UID); len(spans) > 10 {
			t.Errorf("the asking is on the timeline: %q", spans)
		}
	})
}

// TestImportedImageIsUsedImmediately, by the pods that wait for one, without waiting for
// the next time that they would look.
func TestImportedImageIsUsedImmediately(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod)
		times := func() int {
			h.Mu.Lock()
			defer h.Mu.Unlock()
			return h.ImageChecks["p-a"]
		}
		time.Sleep(time.Minute)
		before := times()
		l.until(6*time.Second, "it has looked", func() bool { return times() > before })
		h.Mu.Lock()
		h.HasImage["p-a"] = true
		h.Mu.Unlock()
		l.agent.ImagesImported()
		l.until(4*time.Second, "it runs before it would look again", l.isRunning(pod))
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
		h.Retagged["p-a"], h.Retagged["p-b"] = "@2", "@2"
		h.Mu.Unlock()
		l.agent.ImagesImported()
		time.Sleep(time.Minute)
		if n := h.Happened("start"); n != 2 {
			t.Errorf("%d starts, want none for a tag that moved", n-2)
		}
		for _, c := range []string{"a", "b"} {
			h.Kill(pod.UID, c, 1, false)
			l.until(time.Minute, "a restart takes the new image", runs(c, "sha:p-"+c+"@2", 1))
		}
		l.desire("file")
		l.until(time.Minute, "gone", l.isDeleted(pod.UID))
		h.Mu.Lock()
		h.Retagged["p-a"] = "@3"
		h.Mu.Unlock()
		l.desire("file", pod)
		l.until(time.Minute, "and so does a new pod", runs("a", "sha:p-a@3", 0))
		if n := h.Happened("pull"); n != 0 {
			t.Errorf("%d pulls of what is here", n)
		}
	})
}

// TestUninspectableImageIsNotReportedAbsent where it is never pulled; it is
// used once it can be.
func TestUninspectableImageIsNotReportedAbsent(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.HasImage["p-a"], h.ImageError = true, "connection refused"
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod)
		why := func() string {
			if s, ok := l.agent.StatusCache.Get(pod.UID); ok && len(s.Status.ContainerStatuses) > 0 && s.Status.ContainerStatuses[0].State.Waiting != nil {
				return s.Status.ContainerStatuses[0].State.Waiting.Reason
			}
			return ""
		}
		l.until(time.Second, "it says so", func() bool { return why() == "ImageInspectError" })
		h.Mu.Lock()
		h.ImageError = ""
		h.Mu.Unlock()
		l.until(6*time.Second, "it runs", l.isRunning(pod))
		if told := l.events(pod.UID); told["ErrImageNeverPull"] != 0 {
			t.Errorf("told %v", told)
		}
	})
}
