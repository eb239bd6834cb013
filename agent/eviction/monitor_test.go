package eviction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/node/pressure"
)

// fakeNode simulates a node whose available memory a test controls.
type fakeNode struct {
	mu         sync.Mutex // of free and fails
	free       int64      // bytes
	fails      error
	observedAt []time.Duration // since the start
	changes    []string
	alarm      chan struct{}
	log        bytes.Buffer
	began      time.Time
}

func (h *fakeNode) options() MonitorOptions {
	h.alarm, h.began = make(chan struct{}, 1), time.Now()
	return MonitorOptions{
		Config: pressure.Config{
			Thresholds:       []pressure.Threshold{{Signal: pressure.MemoryAvailable, Hard: true, Quantity: 100}},
			TransitionPeriod: 45 * time.Second,
		},
		Read: func(context.Context) (pressure.Reading, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.observedAt = append(h.observedAt, time.Since(h.began))
			r := pressure.Reading{At: time.Now(), Levels: map[pressure.Signal]pressure.Level{}}
			if h.fails == nil {
				r.Levels[pressure.MemoryAvailable] = pressure.Level{Available: h.free, Capacity: 1000}
			}
			return r, h.fails
		},
		Notify: h.alarm, OnObserved: func(Observation) {}, Log: slog.New(slog.NewTextHandler(&h.log, nil)),
		OnConditionsChanged: func(v Observation) {
			h.changes = append(h.changes, fmt.Sprint(time.Since(h.began).Round(time.Second), v.Conditions()))
		},
	}
}

func (h *fakeNode) set(free int64, fails error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.free, h.fails = free, fails
}

// run runs a Monitor together with a function of the test.
func (h *fakeNode) run(t *testing.T, meanwhile func(*Monitor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := NewMonitor(h.options())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); p.Run(ctx) }()
		synctest.Wait()
		meanwhile(p)
		cancel()
		<-done
	})
}

func (h *fakeNode) sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func TestConditionChangesOnceAndEndsAfterTransitionPeriod(t *testing.T) {
	t.Parallel()
	h := &fakeNode{free: 500}
	h.run(t, func(p *Monitor) {
		if p.HasCondition("MemoryPressure") || p.Latest() == nil {
			t.Error("pressure at the start, or no observation")
		}
		h.sleep(5 * time.Second)
		h.set(50, nil)
		h.sleep(31 * time.Second) // observations at 10, 20 and 30 s
		if !p.HasCondition("MemoryPressure") {
			t.Error("no pressure condition")
		}
		h.set(500, nil)
		h.sleep(time.Minute) // the last observation of the pressure was at 30 s
	})
	if want := []string{"10s [MemoryPressure]", "1m15s []"}; !slices.Equal(h.changes, want) {
		t.Errorf("%q, want %q", h.changes, want)
	}
}

func TestNotificationsAreRateLimited(t *testing.T) {
	t.Parallel()
	h := &fakeNode{free: 500}
	h.run(t, func(*Monitor) {
		h.sleep(3 * time.Second)
		h.set(50, nil)
		for range 20 {
			select {
			case h.alarm <- struct{}{}:
			default:
			}
			h.sleep(100 * time.Millisecond)
		}
	})
	if !slices.Equal(h.observedAt[:2], []time.Duration{0, 3 * time.Second}) || len(h.observedAt) > 4 ||
		h.changes[0] != "3s [MemoryPressure]" {
		t.Errorf("observations at %v, changes %q", h.observedAt, h.changes)
	}
}

func TestReadErrorKeepsConditions(t *testing.T) {
	t.Parallel()
	h := &fakeNode{free: 50}
	h.run(t, func(p *Monitor) {
		h.set(50, errors.New("input/output error"))
		h.sleep(5 * time.Minute)
		if !p.HasCondition("MemoryPressure") {
			t.Error("a read error has ended the pressure condition")
		}
	})
	if n := strings.Count(h.log.String(), "input/output error"); n != 1 || len(h.changes) != 1 {
		t.Errorf("logged %d times, changes %q", n, h.changes)
	}
}
