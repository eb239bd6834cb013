package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/agent/status"
)

// checkPending checks that the status cache has the pod as pending with that reason, both in its
// status and as its only reason, and with all of the words in its message.
func (l *agentFixture) checkPending(pod *corev1.Pod, reason string, words ...string) *status.Snapshot {
	l.t.Helper()
	synctest.Wait()
	s, ok := l.agent.StatusCache.Get(pod.UID)
	if !ok {
		l.t.Fatalf("%s is not published", pod.UID)
	}
	if s.Status.Phase != corev1.PodPending || s.Status.Reason != reason || len(s.Reasons) != 1 ||
		s.Reasons[0].Code != reason {
		l.t.Errorf("%s: got %s %s with reasons %+v, want Pending %s", pod.UID, s.Status.Phase, s.Status.Reason,
			s.Reasons, reason)
	}
	for _, w := range words {
		if !strings.Contains(s.Status.Message, w) {
			l.t.Errorf("%s: message %q does not contain %q", pod.UID, s.Status.Message, w)
		}
	}
	return s
}

func TestPodWaitingForItsNameIsPublished(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.Latency = hostfake.LatencyByCall(map[string]time.Duration{"stop uid": 10 * time.Second})
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		one := hostfake.PodOf("web", "a")
		two, three := withUID(one, "uid-two"), withUID(one, "uid-three")
		l.desire("file", one)
		l.until(time.Second, "runs", l.isRunning(one))
		l.desire("file", two)
		since := l.checkPending(two, NameTaken, "uid-web", "is terminating").Reasons[0].Since
		time.Sleep(time.Second)
		l.desire("file", withUID(two, "uid-two")) // edited in place
		if s := l.checkPending(two, NameTaken); !s.Reasons[0].Since.Equal(since) {
			t.Errorf("got waiting since %s, want %s", s.Reasons[0].Since, since)
		}
		if n := len(l.agent.StatusCache.ListByName("default", "web")); n != 2 {
			t.Errorf("got %d pods of the name, want 2", n)
		}
		l.desire("file", three)
		if _, ok := l.agent.StatusCache.Get(two.UID); ok {
			t.Error("a removed pod is published")
		}
		l.checkPending(three, NameTaken, "uid-web")
		l.until(time.Minute, "the third pod runs", l.isRunning(three))
		if n := len(l.agent.StatusCache.List()); n != 1 {
			t.Errorf("got %d pods, want 1", n)
		}
	})
}

func TestPodOfSecondSourceWithUsedNameIsPublished(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "a", "b")
		one := hostfake.PodOf("web", "a")
		two := withUID(one, "uid-two")
		l.desire("b", one)
		l.until(time.Second, "runs", l.isRunning(one))
		l.desire("a", two)
		time.Sleep(time.Hour)
		l.checkPending(two, NameTaken, "uid-web", "source b")
		if s, _ := l.agent.StatusCache.Find("default", "web"); s.Pod.UID != one.UID {
			t.Errorf("got pod %s, want the first one", s.Pod.UID)
		}
		l.desire("a")
		if _, ok := l.agent.StatusCache.Get(two.UID); ok {
			t.Error("a removed pod is published")
		}
		l.desire("a", two)
		l.desire("b")
		l.until(time.Minute, "the second pod runs", l.isRunning(two))
	})
}

func TestPodThatCannotBeObservedIsPublished(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		broken := true
		h.ErrorBefore = func(call string, _ int) error {
			if broken && strings.HasPrefix(call, "observeHost uid-p") {
				return &plan.Error{Err: errors.New("input/output error")}
			}
			return nil
		}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		l.desire("file", pod)
		time.Sleep(time.Hour)
		s := l.checkPending(pod, observeFailed, "input/output error")
		if d := time.Since(s.Reasons[0].Since); d < time.Hour-time.Second {
			t.Errorf("the reason is only %s old", d)
		}
		start := time.Now()
		l.agent.WaitForSync(t.Context(), time.Minute)
		if time.Since(start) > time.Second {
			t.Error("WaitForSync waits for a pod that cannot be observed")
		}
		if spans := l.spans(pod.UID); len(spans) != 1 {
			t.Errorf("got %d spans for repeated observation failures, want 1", len(spans))
		}
		h.Mu.Lock()
		broken = false
		h.Mu.Unlock()
		l.until(time.Second, "runs", l.isRunning(pod))
		if s, _ := l.agent.StatusCache.Get(pod.UID); s.Status.Reason != "" {
			t.Errorf("the running pod has reason %s", s.Status.Reason)
		}
	})
}
