package agent

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// shows fails unless the board has the pod with that reason, in its status and
// in why, and with all of the words.
func (l *life) shows(pod *corev1.Pod, reason string, words ...string) *Snapshot {
	l.t.Helper()
	synctest.Wait()
	s, ok := l.a.StatusCache.Get(pod.UID)
	if !ok {
		l.t.Fatalf("%s is not shown", pod.UID)
	}
	if s.Status.Phase != corev1.PodPending || s.Status.Reason != reason || len(s.Why) != 1 || s.Why[0].Code != reason {
		l.t.Errorf("%s is %s %s, why %+v; want Pending %s", pod.UID, s.Status.Phase, s.Status.Reason, s.Why, reason)
	}
	for _, w := range words {
		if !strings.Contains(s.Status.Message, w) {
			l.t.Errorf("%s: %q does not say %q", pod.UID, s.Status.Message, w)
		}
	}
	return s
}

func TestAPodThatWaitsForItsNameIsShown(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.takes = takes(map[string]time.Duration{"stop uid": 10 * time.Second})
		l := live(t, h, roomyNode(), nil, "file")
		one := podOf("web", "a")
		two, three := another(one, "uid-two"), another(one, "uid-three")
		l.want("file", one)
		l.until(time.Second, "runs", l.runs(one))
		l.want("file", two)
		since := l.shows(two, NameTaken, "uid-web", "which is ending").Why[0].Since
		time.Sleep(time.Second)
		l.want("file", another(two, "uid-two")) // edited in place
		if s := l.shows(two, NameTaken); !s.Why[0].Since.Equal(since) {
			t.Errorf("it waits since %s, was since %s", s.Why[0].Since, since)
		}
		if n := len(l.a.StatusCache.Named("default", "web")); n != 2 {
			t.Errorf("%d pods of the name are shown", n)
		}
		l.want("file", three)
		if _, shown := l.a.StatusCache.Get(two.UID); shown {
			t.Error("what is no longer wanted is shown")
		}
		l.shows(three, NameTaken, "uid-web")
		l.until(time.Minute, "the third runs", l.runs(three))
		if n := len(l.a.StatusCache.All()); n != 1 {
			t.Errorf("%d pods are shown", n)
		}
	})
}

func TestASecondSourcesPodWithAUsedNameIsShown(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "a", "b")
		one := podOf("web", "a")
		two := another(one, "uid-two")
		l.want("b", one)
		l.until(time.Second, "runs", l.runs(one))
		l.want("a", two)
		time.Sleep(time.Hour)
		l.shows(two, NameTaken, "uid-web", "source b")
		if s, _ := l.a.StatusCache.Find("default", "web"); s.Pod.UID != one.UID {
			t.Errorf("the name is that of %s", s.Pod.UID)
		}
		l.want("a")
		if _, shown := l.a.StatusCache.Get(two.UID); shown {
			t.Error("what is no longer wanted is shown")
		}
		l.want("a", two)
		l.want("b")
		l.until(time.Minute, "the second runs", l.runs(two))
	})
}

func TestAPodThatCannotBeLookedAtIsShown(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		broken := true
		h.fails = func(call string, _ int) error {
			if broken && strings.HasPrefix(call, "lookAtHost uid-p") {
				return &plan.Error{Err: errors.New("input/output error")}
			}
			return nil
		}
		l := live(t, h, roomyNode(), nil, "file")
		pod := podOf("p", "a")
		l.want("file", pod)
		time.Sleep(time.Hour)
		s := l.shows(pod, ObserveFailed, "input/output error")
		if d := time.Since(s.Why[0].Since); d < time.Hour-time.Second {
			t.Errorf("since %s only", d)
		}
		began := time.Now()
		l.a.WaitForSync(t.Context(), time.Minute)
		if time.Since(began) > time.Second {
			t.Error("questions wait for it")
		}
		if spans := l.spans(pod.UID); len(spans) != 1 {
			t.Errorf("the timeline has %d spans of looks that failed alike", len(spans))
		}
		h.mu.Lock()
		broken = false
		h.mu.Unlock()
		l.until(time.Second, "runs", l.runs(pod))
		if s, _ := l.a.StatusCache.Get(pod.UID); s.Status.Reason != "" {
			t.Errorf("it runs with %s", s.Status.Reason)
		}
	})
}
