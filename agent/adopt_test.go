package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"k8s.io/apimachinery/pkg/api/resource"

	"berth/agent/checkpoint"
	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestRejectedStaticPodIsAdmittedAgainAfterRestart(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		filed, served := hostfake.StaticPod(hostfake.PodOf("filed", "a")), hostfake.PodOf("served", "a")
		for _, pod := range []*corev1.Pod{filed, served} {
			pod.Spec.NodeSelector = map[string]string{"zone": "mars"}
		}
		failed := func(l *agentFixture, pod *corev1.Pod) bool {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeAffinity"
		}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", filed, served)
		l.until(time.Second, "both fail", func() bool { return failed(l, filed) && failed(l, served) })
		l.stop()
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", filed, served)
		l.until(time.Second, "both fail again", func() bool { return failed(l, filed) && failed(l, served) })
		l.stop()

		mars := hostfake.LargeNode()
		mars.Labels = map[string]string{"zone": "mars"}
		l = startAgent(t, h, mars, l.records, "file")
		l.desire("file", filed, served)
		l.until(time.Second, "the file's runs", l.isRunning(filed))
		s, _ := l.agent.StatusCache.Get(filed.UID)
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

func TestRestoredRecord(t *testing.T) {
	rejected := checkpoint.Record{
		Verdict: plan.Verdict{State: plan.Rejected, Reason: "NodeAffinity"},
		Memory:  plan.Memory{Phase: corev1.PodFailed, Reason: "NodeAffinity", FinishedAt: time.Unix(1, 0)},
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
		seen  RuntimePod
		phase corev1.PodPhase
		state plan.VerdictState
	}{
		{
			"a file's pod that never ran is asked for anew", hostfake.StaticPod(hostfake.PodOf("p", "a")), rejected,
			RuntimePod{}, "", plan.NotRequested,
		},
		{"a server's pod is not", hostfake.PodOf("p", "a"), rejected, RuntimePod{}, corev1.PodFailed, plan.Rejected},
		{
			"one that has a sandbox keeps its fate", hostfake.StaticPod(hostfake.PodOf("p", "a")), rejected,
			RuntimePod{Sandboxes: []plan.Sandbox{{ID: "s"}}}, corev1.PodFailed, plan.Rejected,
		},
		{"one whose containers have ended too", hostfake.StaticPod(hostfake.PodOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Memory.Exits = map[string]plan.Container{"a": {ID: "k"}}
		}), RuntimePod{}, corev1.PodFailed, plan.Rejected},
		{"and one that is ending", hostfake.StaticPod(hostfake.PodOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Memory.Termination = &plan.Termination{Reason: "Deleted"}
		}), RuntimePod{}, corev1.PodFailed, plan.Rejected},
		{"one that failed while it ran stays failed", hostfake.StaticPod(hostfake.PodOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Verdict = plan.Verdict{State: plan.Admitted}
		}), RuntimePod{}, corev1.PodFailed, plan.Admitted},
		{"one that waited is asked for anew", hostfake.StaticPod(hostfake.PodOf("p", "a")), checkpoint.Record{
			Verdict: plan.Verdict{State: plan.Wait}, Memory: plan.Memory{Phase: corev1.PodPending},
		}, RuntimePod{}, corev1.PodPending, plan.NotRequested},
	} {
		m, v := restored(c.pod, c.rec, c.seen, "boot")
		if m.Phase != c.phase || v.State != c.state {
			t.Errorf("%s: %q, verdict %v", c.what, m.Phase, v)
		}
	}
}

// TestPodsStartInOrderAfterPowerLoss: those that were let in before are not
// judged again, on a node that is too small by now, but they wait for their turn as
// new ones do; also if the agent dies when some have not come to theirs.
func TestPodsStartInOrderAfterPowerLoss(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		var pods []*corev1.Pod
		for i := range 30 {
			pod := hostfake.StaticPod(hostfake.PodOf(fmt.Sprintf("p%02d", i), "a"))
			pod.CreationTimestamp.Time = time.Unix(int64(i*7%30*60), 0)
			switch i % 10 {
			case 7:
				pod.Spec.Priority = new(int32(2_000_000_000))
			case 4:
				pod.Spec.Priority = new(int32(1000))
			}
			pods = append(pods, pod)
		}
		h.boot = "first"
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", pods...)
		l.until(time.Minute, "all run", l.isRunning(pods...))
		l.stop()

		order := slices.Clone(pods)
		slices.SortFunc(order, l.agent.allocator.Compare)
		if order[0] != pods[17] && order[0] != pods[7] && order[0] != pods[27] || order[3].Name[2] != '4' || order[6].Name != "p00" {
			t.Fatalf("they are to start as %v", order)
		}
		h.LosePower()
		h.boot, h.slots = "second", 2
		h.SetTakes(func(call string, _ int) time.Duration {
			if hostfake.HasPrefix(call, "runSandbox", "stopSandbox") {
				return time.Second
			}
			return time.Millisecond
		})
		h.Mu.Lock()
		h.Calls, h.MaxActive = nil, map[string]int{}
		h.Mu.Unlock()
		small := hostfake.LargeNode()
		small.Allocatable[corev1.ResourcePods] = resource.MustParse("1")
		l = startAgent(t, h, small, l.records, "file")
		l.desire("file", pods...)
		l.until(time.Minute, "some run", func() bool { return h.Happened("start ") >= 9 })
		if s, _ := l.agent.StatusCache.Get(order[29].UID); s.Verdict.Reason != "StartQueued" || s.Status.Phase != corev1.PodRunning {
			t.Errorf("the last: %+v, %s", s.Verdict, s.Status.Phase)
		}
		if n := h.AtOnce("stopSandbox"); n != 2 { // clearing away what ran before is part of a start
			t.Errorf("%d sandboxes were stopped at once", n)
		}
		l.stop()
		for _, pod := range pods {
			if rec := l.records[pod.UID]; rec.Verdict.State != plan.Admitted {
				t.Errorf("of %s is kept: %+v", pod.Name, rec.Verdict)
			}
		}

		l = startAgent(t, h, small, l.records, "file") // of the same boot
		l.desire("file", pods...)
		l.until(time.Minute, "all run", l.isRunning(pods...))
		h.Mu.Lock()
		var began []string
		for _, c := range h.Calls {
			if uid, ok := strings.CutPrefix(c.Call, "runSandbox "); ok && !slices.Contains(began, uid) {
				began = append(began, uid)
			}
		}
		h.Mu.Unlock()
		for i, pod := range order {
			if at := slices.Index(began, string(pod.UID)); at < i-1 || at > i+1 { // two at once
				t.Errorf("%s was to start as number %d and started as %d", pod.Name, i, at)
			}
		}
		if n := h.AtOnce("runSandbox"); n != 2 {
			t.Errorf("%d sandboxes were made at once", n)
		}
	})
}
