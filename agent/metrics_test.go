package agent

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestAgentMetrics(t *testing.T) {
	withHost(t, func(t *testing.T, h *testHost) {
		var mu sync.Mutex
		n := map[string]int{}
		count := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			n[what]++
		}
		counted := func(what string) int {
			mu.Lock()
			defer mu.Unlock()
			return n[what]
		}
		l := startAgent(t, h, hostfake.LargeNode(), nil, "file")
		l.agent.Metrics = Metrics{ // before there are workers
			AuditFinished: func() { count("audit") }, EventStreamLost: func() { count("missed") },
			Pods: podMetrics{
				PodRejected:    func(r string) { count(r) },
				ActionFinished: func(_ *corev1.Pod, r plan.Outcome) { count(r.Action.Key().Verb) },
			},
		}
		pod, elsewhere := hostfake.PodOf("p", "a"), hostfake.PodOf("q", "a")
		elsewhere.Spec.NodeSelector = map[string]string{"no": "such"}
		l.desire("file", pod, elsewhere)
		l.until(time.Second, "p runs", l.isRunning(pod))
		time.Sleep(10 * time.Minute)
		if got := counted("audit"); got != 13 {
			t.Errorf("%d audits in 10 minutes", got)
		}
		if n := counted("NodeAffinity"); n != 1 {
			t.Errorf("%d rejections", n)
		}
		if run, start := counted("run"), counted("start"); run != 1 || start != 1 {
			t.Errorf("%d sandboxes, %d containers started", run, start)
		}
		if n := counted("missed"); n != 0 {
			t.Errorf("%d streams lost without a cause", n)
		}
		l.event("", runtimeEvent{Incomplete: true})
		l.event("", runtimeEvent{Listed: &listing{}}) // polled: there was no stream
		l.until(time.Second, "the lost stream", func() bool { return counted("missed") == 1 })
		l.stop()
	})
}
