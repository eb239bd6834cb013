package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/source"
)

// checkNoCalls checks that nothing was done on the host.
func (l *agentFixture) checkNoCalls(when string) {
	l.t.Helper()
	synctest.Wait()
	l.host.Mu.Lock()
	defer l.host.Mu.Unlock()
	if len(l.host.Calls) > 0 {
		l.t.Errorf("%s: calls before the runtime has listed its pods (A1): %v", when, l.host.Calls)
	}
}

func TestDesiredPodsArePublishedWhileRuntimeIsUnavailable(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		h.SetListError(errors.New("connection refused"))
		l := startAgentUnadopted(t, h, hostfake.LargeNode(), nil, "file", "api")
		start := time.Now()
		time.Sleep(time.Minute)
		one, two, removed := hostfake.PodOf("one", "a"), hostfake.PodOf("two", "a"), hostfake.PodOf("removed", "a")
		l.desire("file", one, removed)
		l.send["file"](source.Snapshot{
			Source: "file", Ready: true, Pods: []*corev1.Pod{one, two},
			FileErrors: []source.FileError{{Path: "bad.yaml"}},
		})
		time.Sleep(time.Minute)
		l.checkNoCalls("while the runtime is unavailable")
		if snaps := l.agent.Snapshots(); len(snaps) != 1 || len(snaps[0].FileErrors) != 1 {
			t.Errorf("snapshots: %+v", snaps)
		}
		if n := len(l.agent.StatusCache.List()); n != 2 {
			t.Errorf("got %d pods, want 2", n)
		}
		for _, pod := range []*corev1.Pod{one, two} {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			if !ok || s.Status.Phase != corev1.PodPending || s.Status.Reason != RuntimeNotReady ||
				len(s.Reasons) != 1 ||
				s.Reasons[0].Message != "waiting for the container runtime: connection refused" ||
				!s.Reasons[0].Since.Equal(start) {
				t.Errorf("%s: %+v", pod.Name, s)
			}
		}
		h.SetListError(errors.New("runtime is starting"))
		time.Sleep(2 * time.Second)
		if s, _ := l.agent.StatusCache.Get(one.UID); !strings.HasSuffix(s.Status.Message, ": runtime is starting") {
			t.Errorf("an outdated cause is published: %q", s.Status.Message)
		}
		if cause, since := l.agent.WaitingForRuntime(); !strings.HasSuffix(cause, ": runtime is starting") ||
			!since.Equal(start) {
			t.Errorf("got waiting: %q since %v", cause, since)
		}
		l.checkNoCalls("after a change of the cause")

		h.SetListError(nil)
		l.until(2*time.Second, "both run", l.isRunning(one, two))
		if h.CallCount("createDirs uid-removed") != 0 {
			t.Error("a removed pod was started")
		}
		if cause, _ := l.agent.WaitingForRuntime(); cause != "" {
			t.Errorf("still waiting: %s", cause)
		}
	})
}

func TestRestartWithoutRuntimeStartsNothingTwice(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod, once := hostfake.PodOf("p", "a"), hostfake.PodOf("once", "a")
		once.Spec.RestartPolicy = corev1.RestartPolicyNever
		l.desire("file", pod, once)
		l.until(time.Second, "run", l.isRunning(pod, once))
		before, _ := l.agent.StatusCache.Get(pod.UID)
		if before.Status.PodIP == "" {
			t.Fatal("the pod has no IP")
		}
		h.Kill(once.UID, "a", 3, true)
		l.until(time.Minute, "the pod fails", func() bool {
			s, ok := l.agent.StatusCache.Get(once.UID)
			return ok && s.Status.Phase == corev1.PodFailed
		})
		l.stop()

		h.SetListError(errors.New("connection refused"))
		l = startAgentUnadopted(t, h, hostfake.LargeNode(), l.records, "file")
		successor := withUID(pod, "uid-successor")
		l.desire("file", once, successor)
		if s, ok := l.agent.StatusCache.Get(once.UID); !ok || s.Status.Phase != corev1.PodFailed ||
			len(s.Reasons) != 0 {
			t.Errorf("the failed pod is published as %+v", s)
		}
		l.desire("file", pod, once)
		if s, ok := l.agent.StatusCache.Get(pod.UID); !ok || s.Status.Phase != corev1.PodRunning ||
			s.Status.Reason != RuntimeNotReady ||
			s.Status.PodIP != before.Status.PodIP || !slices.Equal(s.Status.PodIPs, before.Status.PodIPs) {
			t.Errorf("the running pod is published as %+v", s)
		}
		if _, ok := l.agent.StatusCache.Get(successor.UID); ok {
			t.Error("a removed pod is published")
		}
		if events := l.agent.Timeline(t.Context(), pod.UID); events == nil {
			t.Error("no timeline")
		}
		l.desire("file", once, successor)
		time.Sleep(time.Minute)
		h.SetListError(nil)
		<-l.agent.Ready()
		if s, ok := l.agent.StatusCache.Get(successor.UID); !ok || s.Status.Reason != NameTaken {
			t.Errorf("the successor is published as %+v", s)
		}
		l.until(time.Minute, "the successor runs", func() bool {
			return l.isRunning(successor)() && l.isDeleted(pod.UID)()
		})
		if n := h.CallCount("start uid-p/"); n != 1 {
			t.Errorf("the container was started %d times, want 1", n)
		}
	})
}

func TestNewestSnapshotsAreAppliedOnce(t *testing.T) {
	a := New(Config{})
	old, newest, other := &source.Snapshot{Source: "b"}, &source.Snapshot{Source: "b"}, &source.Snapshot{Source: "a"}
	for _, s := range []*source.Snapshot{old, newest, other} {
		a.holdSnapshot(s)
	}
	got := slices.Concat(a.newSnapshots(), a.newSnapshots())
	if len(got) != 2 || got[0] != other || got[1] != newest {
		t.Errorf("got %v, want the newest snapshot of each source", got)
	}
}
