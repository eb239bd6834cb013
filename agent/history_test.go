package agent

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/checkpoint"
	"berth/agent/hostfake"
	"berth/agent/status"
)

// events returns how often each event of a pod was recorded, by reason.
func (l *agentFixture) events(uid types.UID) map[string]int32 {
	out := map[string]int32{}
	for _, e := range l.agent.Events.List(uid) {
		out[e.Reason] += e.Count
	}
	return out
}

func (l *agentFixture) spans(uid types.UID) (names []string) {
	l.t.Helper()
	timeline := l.agent.Timeline(l.t.Context(), uid)
	if timeline == nil {
		l.t.Fatalf("no timeline of %s", uid)
	}
	spans, _ := timeline.Spans()
	for _, s := range spans {
		names = append(names, s.Name)
	}
	return names
}

func TestHistoryContinuesAfterRestart(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod, stuck := hostfake.PodOf("p", "a"), hostfake.PodOf("stuck", "a")
		stuck.Spec.Containers[0].ImagePullPolicy = corev1.PullNever
		l.desire("file", pod, stuck)
		l.until(time.Second, "run", l.isRunning(pod))
		since := whySince(t, l, stuck, "ErrImageNeverPull")
		time.Sleep(time.Hour)
		l.stop()
		rec := l.records[pod.UID]
		if rec.Timeline == nil || rec.Events == nil || l.records[stuck.UID].Reported == nil {
			t.Fatalf("the history is not in the store: %+v", l.records)
		}

		h.SetListError(errors.New("connection refused"))
		l = startAgentUnadopted(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", pod, stuck)
		if names := l.spans(pod.UID); !slices.Contains(names, "start/a") {
			t.Errorf("the timeline before adoption is %q", names)
		}
		if counts := l.events(pod.UID); counts["Started"] != 1 {
			t.Errorf("the events before adoption are %v", counts)
		}
		h.SetListError(nil)
		<-l.agent.Ready()
		l.until(time.Second, "run", l.isRunning(pod))
		time.Sleep(time.Second)
		synctest.Wait()
		names := l.spans(pod.UID)
		start, restart := slices.Index(names, "start/a"), slices.Index(names, "restart/agent")
		if start < 0 || restart < start {
			t.Errorf("the timeline is %q", names)
		}
		if counts := l.events(pod.UID); counts["Started"] != 1 {
			t.Errorf("the events are %v", counts)
		}
		if counts := l.events(stuck.UID); counts["ErrImageNeverPull"] != 1 {
			t.Errorf("the events of the waiting pod are %v", counts)
		}
		if now := whySince(t, l, stuck, "ErrImageNeverPull"); !now.Equal(since) {
			t.Errorf("the pod waits since %s after the restart, since %s before", now, since)
		}

		l.desire("file", stuck)
		l.until(time.Minute, "the pod is deleted", l.isDeleted(pod.UID))
		l.stop()
		if _, kept := l.records[pod.UID]; kept {
			t.Error("the history of a removed pod is kept")
		}
	})
}

func whySince(t *testing.T, l *agentFixture, pod *corev1.Pod, code string) time.Time {
	t.Helper()
	synctest.Wait()
	s, _ := l.agent.StatusCache.Get(pod.UID)
	i := slices.IndexFunc(s.Reasons, func(w status.ReportedReason) bool { return w.Code == code })
	if i < 0 {
		t.Fatalf("reason %s not reported: %+v", code, s.Reasons)
	}
	return s.Reasons[i].Since
}

func TestUnreadableHistoryIsDropped(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		pod := hostfake.PodOf("p", "a")
		l.desire("file", pod)
		l.until(time.Second, "run", l.isRunning(pod))
		l.stop()
		rec := l.records[pod.UID]
		rec.History = checkpoint.History{
			Timeline: []byte("{"), Events: []byte(`{"version":7}`), Reported: []byte(`{"version":7}`),
		}
		l = startAgent(t, h, hostfake.LargeNode(), map[types.UID]checkpoint.Record{pod.UID: rec}, "file")
		l.desire("file", pod)
		l.until(time.Second, "run", l.isRunning(pod))
		if names := l.spans(pod.UID); len(names) == 0 || names[0] != "restart/agent" {
			t.Errorf("the timeline is %q", names)
		}
		if h.CallCount("start uid-p") != 1 {
			t.Error("the container was started again")
		}
	})
}
