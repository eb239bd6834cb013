package cri

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

	"berth/agent/plan"
)

// statusTest is a runtime whose status a test changes.
type statusTest struct {
	mu       sync.Mutex // a change by the test is not ordered with a request after a sleep of the watcher
	status   Status
	err      error
	driver   error
	problem  string
	requests []time.Time
	networks []plan.NetworkStatus
	changes  int // of the readiness
	log      bytes.Buffer
}

func (s *statusTest) watcher() *StatusWatcher {
	return NewStatusWatcher(StatusWatcherOptions{
		Status: func(context.Context) (Status, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.requests = append(s.requests, time.Now())
			return s.status, s.err
		},
		VerifyDriver: func(context.Context) error { return s.driver },
		NetworkProblem: func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.problem
		},
		OnStatus:           func(Status) {},
		OnNetworkChanged:   func(n plan.NetworkStatus) { s.networks = append(s.networks, n) },
		OnReadinessChanged: func() { s.changes++ },
		Log:                slog.New(slog.NewTextHandler(&s.log, nil)),
	})
}

// change changes the status.
func (s *statusTest) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *statusTest) requestCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func TestStatusWatcherPollsFastUntilReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &statusTest{err: errors.New("no such socket")}
		w := s.watcher()
		if w.Problem() != "container runtime status check may not have completed yet" || w.Healthy() == nil {
			t.Errorf("at the start: got %q, %v", w.Problem(), w.Healthy())
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx, func() {}) }()
		step := func(d time.Duration) int {
			synctest.Wait()
			before := s.requestCount()
			time.Sleep(d)
			synctest.Wait()
			return s.requestCount() - before
		}
		if n := step(10 * statusFastPeriod); n != 10 {
			t.Errorf("unavailable: got %d requests", n)
		}
		if w.NotReady() != "container runtime is down: no such socket" || w.Healthy() == nil {
			t.Errorf("unavailable: got %q, %v", w.NotReady(), w.Healthy())
		}
		s.change(func() {
			s.err, s.status, s.problem = nil, Status{Ready: true, NetworkMessage: "not initialized"}, "no conflist"
		})
		step(statusFastPeriod)
		if !strings.HasSuffix(w.NotReady(), "NetworkPluginNotReady message:no conflist") || w.Healthy() != nil {
			t.Errorf("without a network: got %q, %v", w.NotReady(), w.Healthy())
		}
		s.change(func() { s.status.NetworkReady = true })
		step(statusFastPeriod)
		if n := step(10 * statusPeriod); n != 10 || w.NotReady() != "" || !w.Latest().Ready {
			t.Errorf("ready: got %d requests, %q", n, w.NotReady())
		}
		w.Recheck()
		if n := step(cniReloadTime - statusFastPeriod/2); n < 7 {
			t.Errorf("after a change of the network configuration: got %d requests", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []plan.NetworkStatus{{Message: "no conflist"}, {Ready: true}}
		if !slices.Equal(s.networks, want) || s.changes != 3 {
			t.Errorf("got networks %+v, %d changes of the readiness", s.networks, s.changes)
		}
		if n := strings.Count(s.log.String(), `msg="network status changed"`); n != 2 {
			t.Errorf("got log\n%s", &s.log)
		}
	})
}

func TestStatusWatcherStopsForAnotherDriver(t *testing.T) {
	t.Parallel()
	s := &statusTest{driver: fmt.Errorf("%w (a, not b)", ErrCgroupDriverChanged)}
	w := s.watcher()
	if err := w.Run(t.Context(), func() {}); !errors.Is(err, ErrCgroupDriverChanged) {
		t.Errorf("got error %v", err)
	}
	if w.Latest() != nil {
		t.Error("the status was stored before the restart")
	}
}

func TestDriverVerification(t *testing.T) {
	t.Parallel()
	reported, failed, asked := driverSystemd, errors.New("down"), 0
	v := DriverVerification{
		Current: func() string { return driverCgroupfs },
		Runtime: func(context.Context) (string, error) { asked++; return reported, failed },
	}
	if err := v.Verify(t.Context()); err != nil || asked != 0 {
		t.Errorf("not assumed: got %v, %d requests", err, asked)
	}
	v.Assumed.Store(true)
	if err := v.Verify(t.Context()); !errors.Is(err, failed) {
		t.Errorf("unavailable: got %v", err)
	}
	failed = nil
	if err := v.Verify(t.Context()); !errors.Is(err, ErrCgroupDriverChanged) {
		t.Errorf("another driver: got %v", err)
	}
	reported = driverCgroupfs
	if err := v.Verify(t.Context()); err != nil || v.Assumed.Load() {
		t.Errorf("same driver: got %v, assumed %t", err, v.Assumed.Load())
	}
}
