package crilog

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRotatorContinuesAfterFailure(t *testing.T) {
	t.Parallel()
	big, small, broken := newFakeRuntime(t), newFakeRuntime(t), newFakeRuntime(t)
	big.writeLines("a", "b")
	broken.writeLines("a", "b")
	small.raw("x")
	var failed atomic.Int32
	rotated := 0
	r := &Rotator{
		MaxSize: 20, MaxFiles: 3, Workers: 2, Now: func() time.Time { return day(1) }, OnRotated: func(
			n int) {
			rotated += n
		},
		Logs: func() []Log {
			return []Log{
				{Path: broken.path, Reopen: func() error {
					return errors.New("no")
				}, OnError: func(error) { failed.Add(1) }},
				{Path: big.path, Reopen: big.reopen}, {Path: small.path, Reopen: small.reopen},
			}
		},
	}
	r.RunOnce(t.Context())
	if rotated != 1 || failed.Load() != 1 {
		t.Errorf("got %d rotations and %d failures, want 1 and 1", rotated, failed.Load())
	}
	if got := names(t, big.path); got != " .20260101-000000" {
		t.Errorf("big: %q", got)
	}
	if got := names(t, small.path); got != "" {
		t.Errorf("small: %q", got)
	}
}

func TestRotatorIntervalAndWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var listCalls, concurrent, maxConcurrent atomic.Int32
		r := &Rotator{MaxSize: 1, MaxFiles: 2, Workers: 2, Interval: 10 * time.Second, Now: time.Now}
		r.Logs = func() []Log {
			listCalls.Add(1)
			l := Log{Path: "/nonexistent/0.log", Reopen: func() error {
				if n := concurrent.Add(1); n > maxConcurrent.Load() {
					maxConcurrent.Store(n)
				}
				time.Sleep(time.Second)
				concurrent.Add(-1)
				return os.ErrNotExist
			}}
			return []Log{l, l, l, l}
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() { defer close(stopped); r.Run(ctx) }()
		time.Sleep(35 * time.Second)
		cancel()
		<-stopped
		if listCalls.Load() != 4 || maxConcurrent.Load() != 2 { // the first check only lists the logs
			t.Errorf("got %d checks and %d concurrent rotations, want 4 and 2", listCalls.Load(), maxConcurrent.Load())
		}
	})
}

func TestFollowContinuesWithNextRun(t *testing.T) { // L4
	t.Parallel()
	first := newFakeRuntime(t)
	first.writeLines("a")
	first.raw(stamp + " stdout P torn off")
	second := newFakeRuntime(t)
	second.writeLines("b")
	gone := t.TempDir() + "/7.log"
	done := make(chan struct{})
	close(done)
	next := []string{gone, second.path}
	var out strings.Builder
	err := Read(t.Context(), Options{
		Path: first.path, Follow: true, Done: done, Stdout: &out,
		NextRun: func(context.Context) (string, <-chan struct{}, bool) {
			if len(next) == 0 {
				return "", nil, false
			}
			path := next[0]
			next = next[1:]
			return path, done, true
		},
	})
	if err != nil || out.String() != "a\ntorn off\nb\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
