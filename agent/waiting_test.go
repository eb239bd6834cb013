package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/source"
)

// setDown has the runtime list nothing, with an error; nil: it is back.
func (h *fakeHost) setDown(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = err
}

// quiet fails if anything was done on the host.
func (l *life) quiet(when string) {
	l.t.Helper()
	synctest.Wait()
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if len(l.h.calls) > 0 {
		l.t.Errorf("%s: done before the runtime has told what it has (A1): %v", when, l.h.calls)
	}
}

func TestWhatIsWantedIsShownWhileTheRuntimeIsAway(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		h.setDown(errors.New("connection refused"))
		l := begin(t, h, roomyNode(), nil, "file", "api")
		began := time.Now()
		time.Sleep(time.Minute)
		one, two, passing := podOf("one", "a"), podOf("two", "a"), podOf("passing", "a")
		l.want("file", one, passing)
		l.tell["file"](source.Snapshot{Source: "file", Ready: true, Pods: []*corev1.Pod{one, two}, FileErrors: []source.FileError{{Path: "bad.yaml"}}})
		time.Sleep(time.Minute)
		l.quiet("with the runtime away")
		if snaps := l.a.Snapshots(); len(snaps) != 1 || len(snaps[0].FileErrors) != 1 {
			t.Errorf("snapshots: %+v", snaps)
		}
		if n := len(l.a.StatusCache.All()); n != 2 {
			t.Errorf("%d pods are shown", n)
		}
		for _, pod := range []*corev1.Pod{one, two} {
			s, ok := l.a.StatusCache.Get(pod.UID)
			if !ok || s.Status.Phase != corev1.PodPending || s.Status.Reason != RuntimeNotReady || len(s.Why) != 1 ||
				s.Why[0].Detail != "waiting for the container runtime: connection refused" || !s.Why[0].Since.Equal(began) {
				t.Errorf("%s: %+v", pod.Name, s)
			}
		}
		h.setDown(errors.New("it is starting"))
		time.Sleep(2 * time.Second)
		if s, _ := l.a.StatusCache.Get(one.UID); !strings.HasSuffix(s.Status.Message, ": it is starting") {
			t.Errorf("an old cause is shown: %q", s.Status.Message)
		}
		if cause, since := l.a.WaitingForRuntime(); !strings.HasSuffix(cause, ": it is starting") || !since.Equal(began) {
			t.Errorf("waiting: %q since %v", cause, since)
		}
		l.quiet("after another cause")

		h.setDown(nil)
		l.until(2*time.Second, "both run", l.runs(one, two))
		if h.happened("makeDirs uid-passing") != 0 {
			t.Error("a pod was begun that is no longer wanted")
		}
		if cause, _ := l.a.WaitingForRuntime(); cause != "" {
			t.Errorf("it still waits: %s", cause)
		}
	})
}

func TestRestartWithTheRuntimeAwayStartsNothingTwice(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		l := live(t, h, roomyNode(), nil, "file")
		pod, once := podOf("p", "a"), podOf("once", "a")
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		l.want("file", pod, once)
		l.until(time.Second, "run", l.runs(pod, once))
		before, _ := l.a.StatusCache.Get(pod.UID)
		if before.Status.PodIP == "" {
			t.Fatal("it has no address")
		}
		h.kill(once.UID, "a", 3, true)
		l.until(time.Minute, "one fails", func() bool {
			s, ok := l.a.StatusCache.Get(once.UID)
			return ok && s.Status.Phase == corev1.PodFailed
		})
		l.leaving()

		h.setDown(errors.New("connection refused"))
		l = begin(t, h, roomyNode(), l.records, "file")
		successor := another(pod, "uid-successor")
		l.want("file", once, successor)
		if s, ok := l.a.StatusCache.Get(once.UID); !ok || s.Status.Phase != corev1.PodFailed || len(s.Why) != 0 {
			t.Errorf("what had failed is shown as %+v", s)
		}
		l.want("file", pod, once)
		if s, ok := l.a.StatusCache.Get(pod.UID); !ok || s.Status.Phase != corev1.PodRunning || s.Status.Reason != RuntimeNotReady ||
			s.Status.PodIP != before.Status.PodIP || !slices.Equal(s.Status.PodIPs, before.Status.PodIPs) {
			t.Errorf("what ran is shown as %+v", s)
		}
		if _, shown := l.a.StatusCache.Get(successor.UID); shown {
			t.Error("what is no longer wanted is shown")
		}
		if events := l.a.Timeline(t.Context(), pod.UID); events == nil {
			t.Error("no timeline")
		}
		l.want("file", once, successor)
		time.Sleep(time.Minute)
		h.setDown(nil)
		<-l.a.Ready()
		if s, shown := l.a.StatusCache.Get(successor.UID); !shown || s.Status.Reason != NameTaken {
			t.Errorf("the successor is shown as %+v", s)
		}
		l.until(time.Minute, "the successor runs", func() bool { return l.runs(successor)() && l.gone(pod.UID)() })
		if n := h.happened("start uid-p/"); n != 1 {
			t.Errorf("it was started %d times", n)
		}
	})
}

func TestSnapshotsAreTakenOnceAndOnlyTheNewest(t *testing.T) {
	a := New(Config{})
	var got []*source.Snapshot
	take := func(s *source.Snapshot) { got = append(got, s) }
	old, newest, other := &source.Snapshot{Source: "b"}, &source.Snapshot{Source: "b"}, &source.Snapshot{Source: "a"}
	for _, s := range []*source.Snapshot{old, newest, other} {
		a.holdSnapshot(s)
	}
	a.applyHeldSnapshots(take)
	a.applyHeldSnapshots(take)
	if len(got) != 2 || got[0] != other || got[1] != newest {
		t.Errorf("taken: %v", got)
	}
}
