package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// TestAnImageBroughtByHandIsNoticed within seconds, by the pod that waits for it,
// which asks for nothing else meanwhile and does not tell watchers each time.
func TestAnImageBroughtByHandIsNoticed(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		pod, idle := podOf("p", "a", "b"), podOf("idle", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.want("file", pod, idle)
		l.until(time.Second, "the other runs", l.runs(idle))
		time.Sleep(time.Minute)
		changed, stop := l.a.StatusCache.Changes()
		defer stop()
		h.mu.Lock()
		asked, looks := h.asked["p-a"], h.count["lookAtHost uid-p"]
		others := h.asked["idle-a"]
		h.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		select {
		case <-changed:
			t.Error("watchers were told of an image that is still not there")
		default:
		}
		h.mu.Lock()
		if n := h.asked["p-a"] - asked; n < 115 || n > 121 {
			t.Errorf("the node was asked %d times in ten minutes, want once in 5 s", n)
		}
		if n := h.count["lookAtHost uid-p"] - looks; n != 0 {
			t.Errorf("the host was looked at %d times", n)
		}
		if n := h.asked["idle-a"] - others; n != 0 {
			t.Errorf("the node was asked %d times for what is running", n)
		}
		h.images["p-a"] = true
		h.mu.Unlock()
		l.until(5100*time.Millisecond, "it runs", l.runs(pod))
		if spans := l.spans(pod.UID); len(spans) > 10 {
			t.Errorf("the asking is on the timeline: %q", spans)
		}
	})
}

// TestAnImageThatCameIsUsedAtOnce, by the pods that wait for one, without waiting for
// the next time that they would look.
func TestAnImageThatCameIsUsedAtOnce(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.want("file", pod)
		times := func() int {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.asked["p-a"]
		}
		time.Sleep(time.Minute)
		before := times()
		l.until(6*time.Second, "it has looked", func() bool { return times() > before })
		h.mu.Lock()
		h.images["p-a"] = true
		h.mu.Unlock()
		l.a.ImagesImported()
		l.until(4*time.Second, "it runs before it would look again", l.runs(pod))
	})
}

// TestATagThatMovedIsFollowed by the next start under its name, of a pod that runs and
// of a new one; nobody is restarted for it.
func TestATagThatMovedIsFollowed(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.images["p-a"], h.images["p-b"] = true, true
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a", "b")
		pod.Spec.Containers[1].ImagePullPolicy = corev1.PullNever
		l.want("file", pod)
		l.until(time.Second, "runs", l.runs(pod))
		runs := func(name, image string, attempt uint32) func() bool {
			return func() bool {
				h.mu.Lock()
				defer h.mu.Unlock()
				return slices.ContainsFunc(h.of(pod.UID).containers, func(k plan.Container) bool {
					return k.Name == name && k.State == plan.Running && k.Attempt == attempt && k.Image == image
				})
			}
		}
		h.mu.Lock()
		h.moved["p-a"], h.moved["p-b"] = "@2", "@2"
		h.mu.Unlock()
		l.a.ImagesImported()
		time.Sleep(time.Minute)
		if n := h.happened("start"); n != 2 {
			t.Errorf("%d starts, want none for a tag that moved", n-2)
		}
		for _, c := range []string{"a", "b"} {
			h.kill(pod.UID, c, 1, false)
			l.until(time.Minute, "a restart takes the new image", runs(c, "sha:p-"+c+"@2", 1))
		}
		l.want("file")
		l.until(time.Minute, "gone", l.gone(pod.UID))
		h.mu.Lock()
		h.moved["p-a"] = "@3"
		h.mu.Unlock()
		l.want("file", pod)
		l.until(time.Minute, "and so does a new pod", runs("a", "sha:p-a@3", 0))
		if n := h.happened("pull"); n != 0 {
			t.Errorf("%d pulls of what is here", n)
		}
	})
}

// TestAnImageThatCannotBeLookedAtIsNotCalledAbsent where it is never pulled; it is
// used once it can be.
func TestAnImageThatCannotBeLookedAtIsNotCalledAbsent(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.images["p-a"], h.unclear = true, "connection refused"
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a")
		pod.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.want("file", pod)
		why := func() string {
			if s, ok := l.a.StatusCache.Get(pod.UID); ok && len(s.Status.ContainerStatuses) > 0 && s.Status.ContainerStatuses[0].State.Waiting != nil {
				return s.Status.ContainerStatuses[0].State.Waiting.Reason
			}
			return ""
		}
		l.until(time.Second, "it says so", func() bool { return why() == "ImageInspectError" })
		h.mu.Lock()
		h.unclear = ""
		h.mu.Unlock()
		l.until(6*time.Second, "it runs", l.runs(pod))
		if told := l.events(pod.UID); told["ErrImageNeverPull"] != 0 {
			t.Errorf("told %v", told)
		}
	})
}
