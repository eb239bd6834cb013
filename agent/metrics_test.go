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
		l.agent.Metrics = Metrics{ // before any worker exists
			AuditFinished: func() { count("audit") }, EventStreamLost: func() { count("streamLost") },
			Relisted: func(_ time.Time, interval, _ time.Duration) { count("interval " + interval.String()) },
			Pods: podMetrics{
				PodRejected:    func(r string) { count(r) },
				ActionFinished: func(_ *corev1.Pod, r plan.Outcome) { count(r.Action.Key().Verb) },
			},
		}
		pod, misplaced := hostfake.PodOf("p", "a"), hostfake.PodOf("q", "a")
		misplaced.Spec.NodeSelector = map[string]string{"no": "such"}
		l.desire("file", pod, misplaced)
		l.until(time.Second, "p runs", l.isRunning(pod))
		time.Sleep(10 * time.Minute)
		if got := counted("audit"); got != 13 {
			t.Errorf("got %d audits in 10 minutes, want 13", got)
		}
		if first, more := counted("interval 0s"), counted("interval 45s"); first+more != 13 || first > 1 {
			t.Errorf("got %d lists without and %d with the interval of 45 s, want 13", first, more)
		}
		if n := counted("NodeAffinity"); n != 1 {
			t.Errorf("got %d rejections, want 1", n)
		}
		if run, start := counted("run"), counted("start"); run != 1 || start != 1 {
			t.Errorf("got %d sandbox and %d container starts, want 1 each", run, start)
		}
		if n := counted("streamLost"); n != 0 {
			t.Errorf("got %d lost event streams, want 0", n)
		}
		l.event("", runtimeEvent{Incomplete: true})
		l.event("", runtimeEvent{Listed: &listing{}}) // a polled runtime has no stream to lose
		l.until(time.Second, "the lost stream", func() bool { return counted("streamLost") == 1 })
		l.stop()
	})
}
