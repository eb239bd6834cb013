package pod

import (
	"context"
	"strings"
	"testing"
	"time"

	"berth/agent/hostfake"
	"berth/agent/plan"
)

func TestRequestedRestartIsOnDiskBeforeStop(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		pod := hostfake.PodOf("p", "a", "b")
		w := r.start(pod)
		r.until(time.Second, "runs", r.isRunning(pod))
		var synced time.Time
		r.flush = func(ctx context.Context) error {
			sleep(ctx, time.Second)
			synced = time.Now()
			return nil
		}
		reply := make(chan error, 1)
		w.inbox.put(func(p *messages) {
			p.requests = append(p.requests, request{names: []string{"b"}, apply: plan.RequestRestart, reply: reply})
		})
		if err := <-reply; err != nil || synced.IsZero() {
			t.Errorf("got %v, on disk at %v", err, synced)
		}
		restarted := func() bool {
			s, _ := r.statuses.Get(pod.UID)
			for _, k := range s.Observed.Containers {
				if k.Name == "b" && k.Attempt == 1 && k.State == plan.Running {
					return true
				}
			}
			return false
		}
		r.until(time.Minute, "b is restarted", restarted)
		if at := r.host.CallTimes("stop"); len(at) != 1 || at[0].Before(synced) {
			t.Errorf("got stops at %v, want one after the flush at %v", at, synced)
		}
		w.inbox.put(func(p *messages) {
			p.requests = append(p.requests, request{names: []string{"c"}, apply: plan.RequestRestart, reply: reply})
		})
		if err := <-reply; err == nil || !strings.Contains(err.Error(), "no container c") {
			t.Errorf("got %v, want an error that names container c", err)
		}
	})
}
