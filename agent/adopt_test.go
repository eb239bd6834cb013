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
		static, apiPod := hostfake.StaticPod(hostfake.PodOf("static", "a")), hostfake.PodOf("api", "a")
		for _, pod := range []*corev1.Pod{static, apiPod} {
			pod.Spec.NodeSelector = map[string]string{"zone": "mars"}
		}
		failed := func(l *agentFixture, pod *corev1.Pod) bool {
			s, ok := l.agent.StatusCache.Get(pod.UID)
			return ok && s.Status.Phase == corev1.PodFailed && s.Status.Reason == "NodeAffinity"
		}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.desire("file", static, apiPod)
		l.until(time.Second, "both pods are rejected", func() bool { return failed(l, static) && failed(l, apiPod) })
		l.stop()
		l = startAgent(t, h, hostfake.LargeNode(), l.records, "file")
		l.desire("file", static, apiPod)
		l.until(time.Second, "both pods are still rejected", func() bool {
			return failed(l, static) && failed(l, apiPod)
		})
		l.stop()

		mars := hostfake.LargeNode()
		mars.Labels = map[string]string{"zone": "mars"}
		l = startAgent(t, h, mars, l.records, "file")
		l.desire("file", static, apiPod)
		l.until(time.Second, "the static pod runs", l.isRunning(static))
		s, _ := l.agent.StatusCache.Get(static.UID)
		if s.Status.Reason != "" || s.Status.Message != "" {
			t.Errorf("the running pod has reason %q, message %q", s.Status.Reason, s.Status.Message)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !failed(l, apiPod) {
			t.Error("a failed pod of the API server was started again")
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
		what    string
		pod     *corev1.Pod
		rec     checkpoint.Record
		runtime RuntimePod
		phase   corev1.PodPhase
		state   plan.VerdictState
	}{
		{
			"a rejected static pod is admitted again", hostfake.StaticPod(hostfake.PodOf("p", "a")), rejected,
			RuntimePod{}, "", plan.NotRequested,
		},
		{"a rejected pod of the API server is not", hostfake.PodOf("p", "a"), rejected, RuntimePod{}, corev1.PodFailed,
			plan.Rejected},
		{
			"a pod with a sandbox keeps its verdict", hostfake.StaticPod(hostfake.PodOf("p", "a")), rejected,
			RuntimePod{Sandboxes: []plan.Sandbox{{ID: "s"}}}, corev1.PodFailed, plan.Rejected,
		},
		{"so does a pod with exited containers", hostfake.StaticPod(hostfake.PodOf("p", "a")),
			with(func(r *checkpoint.Record) {
				r.Memory.Exits = map[string]plan.Container{"a": {ID: "k"}}
			}), RuntimePod{}, corev1.PodFailed, plan.Rejected},
		{"and a terminating pod", hostfake.StaticPod(hostfake.PodOf("p", "a")), with(func(r *checkpoint.Record) {
			r.Memory.Termination = &plan.Termination{Reason: "Deleted"}
		}), RuntimePod{}, corev1.PodFailed, plan.Rejected},
		{"a pod that failed while running stays failed", hostfake.StaticPod(hostfake.PodOf("p", "a")),
			with(func(r *checkpoint.Record) {
				r.Verdict = plan.Verdict{State: plan.Admitted}
			}), RuntimePod{}, corev1.PodFailed, plan.Admitted},
		{"a waiting pod is admitted again", hostfake.StaticPod(hostfake.PodOf("p", "a")), checkpoint.Record{
			Verdict: plan.Verdict{State: plan.Wait}, Memory: plan.Memory{Phase: corev1.PodPending},
		}, RuntimePod{}, corev1.PodPending, plan.NotRequested},
	} {
		m, v := restored(c.pod, c.rec, c.runtime, "boot")
		if m.Phase != c.phase || v.State != c.state {
			t.Errorf("%s: %q, verdict %v", c.what, m.Phase, v)
		}
	}
}

// TestPodsStartInOrderAfterPowerLoss checks that admitted pods are not checked again on a node
// that has become too small, but wait for a start slot like new pods. This also holds if the agent
// stops while some of them wait.
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
		if order[0] != pods[17] && order[0] != pods[7] && order[0] != pods[27] || order[3].Name[2] != '4' ||
			order[6].Name != "p00" {
			t.Fatalf("unexpected start order %v", order)
		}
		h.PowerOff()
		h.boot, h.slots = "second", 2
		h.SetLatency(func(call string, _ int) time.Duration {
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
		l.until(time.Minute, "some run", func() bool { return h.CallCount("start ") >= 9 })
		if s, _ := l.agent.StatusCache.Get(order[29].UID); s.Verdict.Reason != "StartQueued" ||
			s.Status.Phase != corev1.PodRunning {
			t.Errorf("the last pod has verdict %+v and phase %s, want StartQueued and Running", s.Verdict,
				s.Status.Phase)
		}
		if n := h.MaxConcurrent("stopSandbox"); n != 2 { // the removal of old sandboxes is part of a start
			t.Errorf("got %d concurrent sandbox stops, want 2", n)
		}
		l.stop()
		for _, pod := range pods {
			if rec := l.records[pod.UID]; rec.Verdict.State != plan.Admitted {
				t.Errorf("%s: got recorded verdict %+v, want Admitted", pod.Name, rec.Verdict)
			}
		}

		l = startAgent(t, h, small, l.records, "file") // in the same boot
		l.desire("file", pods...)
		l.until(time.Minute, "all run", l.isRunning(pods...))
		h.Mu.Lock()
		var started []string
		for _, c := range h.Calls {
			if uid, ok := strings.CutPrefix(c.Call, "runSandbox "); ok && !slices.Contains(started, uid) {
				started = append(started, uid)
			}
		}
		h.Mu.Unlock()
		for i, pod := range order {
			if at := slices.Index(started, string(pod.UID)); at < i-1 || at > i+1 { // two start slots
				t.Errorf("%s: want start position %d, got %d", pod.Name, i, at)
			}
		}
		if n := h.MaxConcurrent("runSandbox"); n != 2 {
			t.Errorf("got %d concurrent sandbox starts, want 2", n)
		}
	})
}
