package agent

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/checkpoint"
	"berth/agent/plan"
)

// static makes the pod a file's.
func static(pod *corev1.Pod) *corev1.Pod {
	pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	return pod
}

func TestRejectionOfAFilesPodEndsWithTheLife(t *testing.T) {
	inLife(t, func(t *testing.T, h *fakeHost) {
		filed, served := static(podOf("filed", "a")), podOf("served", "a")
		for _, pod := range []*corev1.Pod{filed, served} {
			pod.Spec.NodeSelector = map[string]string{"zone": "mars"}
		}
		failed := func(l *life, pod *corev1.Pod) bool {
			s, ok := l.a.Board.Get(pod.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeAffinity"
		}
		l := live(t, h, roomyNode(), nil, "file")
		l.want("file", filed, served)
		l.until(time.Second, "both fail", func() bool { return failed(l, filed) && failed(l, served) })
		l.leaving()
		l = live(t, h, roomyNode(), l.records, "file")
		l.want("file", filed, served)
		l.until(time.Second, "both fail again", func() bool { return failed(l, filed) && failed(l, served) })
		l.leaving()

		mars := roomyNode()
		mars.Labels = map[string]string{"zone": "mars"}
		l = live(t, h, mars, l.records, "file")
		l.want("file", filed, served)
		l.until(time.Second, "the file's runs", l.runs(filed))
		s, _ := l.a.Board.Get(filed.UID)
		if s.Status.Reason != "" || s.Status.Message != "" {
			t.Errorf("it runs with %q %q", s.Status.Reason, s.Status.Message)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !failed(l, served) {
			t.Error("a server's pod came back from Failed")
		}
	})
}

func TestWhatOfARecordHoldsInTheNextLife(t *testing.T) {
	rejected := checkpoint.Record{
		Verdict: plan.Verdict{State: plan.Rejected, Reason: "NodeAffinity"},
		Memory:  plan.Memory{Phase: corev1.PodFailed, Reason: "NodeAffinity", Finished: time.Unix(1, 0)},
	}
	with := func(f func(*checkpoint.Record)) checkpoint.Record {
		r := rejected
		f(&r)
		return r
	}
	for _, c := range []struct {
		what  string
		pod   *corev1.Pod
		rec   checkpoint.Record
		seen  Adopted
		phase corev1.PodPhase
		state plan.VerdictState
	}{
		{"a file's pod that never ran is asked for anew", static(podOf("p", "a")), rejected, Adopted{}, "", plan.NotAsked},
		{"a server's pod is not", podOf("p", "a"), rejected, Adopted{}, corev1.PodFailed, plan.Rejected},
		{
			"one that has a sandbox keeps its fate", static(podOf("p", "a")), rejected,
			Adopted{Sandboxes: []plan.Sandbox{{ID: "s"}}}, corev1.PodFailed, plan.Rejected,
		},
		{"one whose containers have ended too", static(podOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Memory.Exits = map[string]plan.Container{"a": {ID: "k"}}
		}), Adopted{}, corev1.PodFailed, plan.Rejected},
		{"and one that is ending", static(podOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Memory.End = &plan.End{Reason: "Deleted"}
		}), Adopted{}, corev1.PodFailed, plan.Rejected},
		{"one that failed while it ran stays failed", static(podOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Verdict = plan.Verdict{State: plan.OK}
		}), Adopted{}, corev1.PodFailed, plan.OK},
		{"one that waited is asked for anew", static(podOf("p", "a")), checkpoint.Record{
			Verdict: plan.Verdict{State: plan.Wait}, Memory: plan.Memory{Phase: corev1.PodPending},
		}, Adopted{}, corev1.PodPending, plan.NotAsked},
	} {
		m, v := restored(c.pod, c.rec, c.seen, "boot")
		if m.Phase != c.phase || v.State != c.state {
			t.Errorf("%s: %q, verdict %v", c.what, m.Phase, v)
		}
	}
}
