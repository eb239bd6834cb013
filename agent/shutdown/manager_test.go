package shutdown

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/status"
	nodeshutdown "berth/node/shutdown"
)

// world contains pods that terminate after a time, or never.
type world struct {
	mu       sync.Mutex
	statuses *status.Cache
	takes    map[types.UID]time.Duration // absent: never
	ended    []string
	at       []time.Duration
	began    time.Time
	over     sync.WaitGroup
}

func (w *world) put(name string, priority int32, phase corev1.PodPhase) {
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.UID = "default", name, types.UID(name)
	p.Spec.Priority = &priority
	w.statuses.Put(&status.Snapshot{Pod: p, Status: corev1.PodStatus{Phase: phase}, Syncs: 1, At: time.Now()})
}

func (w *world) end(_ context.Context, uid types.UID, grace time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.at = append(w.ended, string(uid)+"="+grace.String()), append(w.at, time.Since(w.began))
	takes, ends := w.takes[uid]
	if !ends {
		return true
	}
	w.over.Go(func() {
		time.Sleep(takes)
		w.put(string(uid), 0, corev1.PodFailed)
	})
	return true
}

func TestGroupsTerminateInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			statuses: status.New(),
			began:    time.Now(),
			takes:    map[types.UID]time.Duration{"web": 3 * time.Second, "dns": time.Second, "db": 0},
		}
		w.put("web", 0, corev1.PodRunning)
		w.put("done", 0, corev1.PodSucceeded)
		w.put("dns", 2_000_000_000, corev1.PodRunning)
		w.put("db", 100, corev1.PodRunning)
		w.put("deaf", 100, corev1.PodPending)
		var order []string
		d := New(Options{
			Groups: nodeshutdown.Groups(
				0,
				0,
				[]nodeshutdown.Group{
					{Priority: 0, GracePeriod: 20 * time.Second},
					{Priority: 100, GracePeriod: 7 * time.Second},
					{Priority: 2_000_000_000, GracePeriod: 5 * time.Second},
				},
			),
			Statuses: w.statuses, TerminatePod: w.end, Log: slog.New(slog.DiscardHandler),
			OnStarted: func() {
				order = append(order, "began")
			}, FlushStatus: func(context.Context) { order = append(order, "flushed") },
		})
		if d.ShuttingDown() {
			t.Error("ShuttingDown before Run")
		}
		second := make(chan Result, 1)
		first, err := d.Run(t.Context(), t.Context())
		go func() {
			r, _ := d.Run(t.Context(), t.Context())
			second <- r
		}()
		if got := <-second; err != nil || got.Pods != 4 || first.Pods != 4 {
			t.Errorf("%v: %+v, second caller %+v", err, first, got)
		}
		if want := []string{"web=20s", "db=7s", "deaf=7s", "dns=5s"}; !slices.Equal(w.ended, want) {
			t.Errorf("terminated %v, want %v", w.ended, want)
		}
		// A group starts as soon as the previous one has terminated.
		if want := []time.Duration{0, 3 * time.Second, 3 * time.Second, 11 * time.Second}; !slices.Equal(w.at, want) {
			t.Errorf("at %v, want %v", w.at, want)
		}
		if !slices.Equal(first.Overdue, []string{"default/deaf"}) || first.Duration != 12*time.Second ||
			!d.ShuttingDown() {
			t.Errorf("%+v", first)
		}
		if !slices.Equal(order, []string{"began", "flushed"}) {
			t.Errorf("%v", order)
		}
		d.Cancel()
		if d.ShuttingDown() {
			t.Error("ShuttingDown after Cancel")
		}
		if again, err := d.Run(t.Context(), t.Context()); err != nil || again.Pods != 1 ||
			len(order) != 4 { // the pod that never terminates
			t.Errorf("%v: next shutdown: %+v", err, again)
		}
		w.over.Wait()
	})
}

func TestCallerMayStopWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{statuses: status.New(), began: time.Now(),
			takes: map[types.UID]time.Duration{"web": 3 * time.Second}}
		w.put("web", 0, corev1.PodRunning)
		d := New(
			Options{
				Groups:       nodeshutdown.Groups(time.Minute, 0, nil),
				Statuses:     w.statuses,
				TerminatePod: w.end,
				Log:          slog.New(slog.DiscardHandler),
				OnStarted:    func() {},
			},
		)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.Run(ctx, t.Context()); err == nil {
			t.Error("Run did not return")
		}
		if r, err := d.Run(t.Context(), t.Context()); err != nil || len(r.Overdue) > 0 || r.Duration != 3*time.Second {
			t.Errorf("the shutdown did not continue: %+v %v", r, err)
		}
		w.over.Wait()
	})
}

func TestAwaitReportedIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		AwaitReported(t.Context(), func() bool { return time.Since(start) >= time.Second })
		if took := time.Since(start); took != time.Second {
			t.Errorf("got a wait of %v for a report after 1 s", took)
		}
		start = time.Now()
		AwaitReported(t.Context(), func() bool { return false })
		if took := time.Since(start); took != reportTimeout {
			t.Errorf("got a wait of %v without a report", took)
		}
	})
}
