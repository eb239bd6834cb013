package pod

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/hostfake"
	"berth/agent/plan"
	"berth/agent/status/events"
)

func TestStopwatchCountsOverlapOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s events.Stopwatch
		time.Sleep(time.Second)
		one := s.Start()
		time.Sleep(2 * time.Second)
		two := s.Start()
		time.Sleep(3 * time.Second)
		one()
		time.Sleep(4 * time.Second)
		if got := s.Total(); got != 9*time.Second {
			t.Errorf("got %v with one operation in progress, want 9s", got)
		}
		two()
		time.Sleep(time.Second)
		if got := s.Total(); got != 9*time.Second {
			t.Errorf("got %v after all operations, want 9s", got)
		}
	})
}

func TestStartOverheadExcludesPullsAndRuntimeChanges(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		r.host.Latency = hostfake.LatencyByCall(map[string]time.Duration{
			"pull uid-p/a": time.Minute, "mount uid-p/conf": 70 * time.Second,
		})
		pod := hostfake.WithConfigMap(hostfake.PodOf("p", "a"), "c")
		r.setConfigMaps(map[string]string{"c": "1"})
		w := r.start(pod)
		r.until(2*time.Minute, "the pod runs", r.isRunning(pod))
		if got := time.Duration(r.overhead.Load()).Round(time.Second); got != 10*time.Second {
			t.Errorf("got overhead %v, want 10s: the mount outlasts the pull by that", got)
		}
		if got := time.Duration(r.pulling.Load()).Round(time.Second); got != time.Minute {
			t.Errorf("got pull time %v, want 1m0s", got)
		}
		ctx, end := w.startSpan(t.Context(), "build-run", "start/a", "")
		before := w.runtimeTime.Total()
		for call, duration := range map[string]time.Duration{"ContainerStatus": time.Hour,
			"StartContainer": time.Second} {
			endCall := RuntimeCallSpan(ctx, call)
			time.Sleep(duration)
			endCall(nil)
		}
		end(nil)
		if got := w.runtimeTime.Total() - before; got != time.Second {
			t.Errorf("got %v of runtime changes, want 1s", got)
		}
	})
}

func TestOutcomeIsLoggedOnce(t *testing.T) {
	withWorkers(t, func(t *testing.T, r *workerFixture) {
		var log bytes.Buffer
		w := &Worker{state: newState(), log: slog.New(slog.NewTextHandler(&log, nil)), agent: r}
		errFailed := errors.New("failed")
		for _, row := range []struct {
			action      plan.Action
			err         error
			reported    int
			level, text string // expected in the log; empty: no line
			lines       int
		}{
			{plan.PullImage{Container: "a", Image: "x"}, errFailed, 2, "WARN",
				`reason=Failed target=a action=pull/a`, 1},
			{plan.RunSandbox{}, errFailed, 1, "WARN", `reason=FailedCreatePodSandBox action=run/sandbox`, 1},
			{plan.RemoveSandbox{ID: "s"}, errFailed, 0, "WARN", `msg="action failed" action=remove/s`, 1},
			{plan.RemoveSandbox{ID: "s"}, &plan.Error{Kind: plan.Canceled, Err: errFailed}, 0, "", "", 0},
			{plan.StartContainer{Name: "a"}, nil, 2, "INFO", `reason=Started target=a`, 2},
		} {
			log.Reset()
			r.reported = nil
			w.reportOutcome(plan.Outcome{Action: row.action, Err: row.err})
			if n := strings.Count(log.String(), "\n"); n != row.lines ||
				strings.Count(log.String(), "level="+row.level) != n && n > 0 ||
				!strings.Contains(log.String(), row.text) || strings.Contains(log.String(), `on=""`) ||
				len(r.reported) != row.reported {
				t.Errorf("%s, %v: got %d reasons, log:\n%s", row.action.Key(), row.err, len(r.reported), log.String())
			}
		}
	})
}
