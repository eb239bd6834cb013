package systemd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchdogFromEnvironment(t *testing.T) {
	own := strconv.Itoa(os.Getpid())
	for _, tt := range []struct {
		name      string
		usec, pid string
		want      time.Duration
		wantErr   string
	}{
		{"interval without a PID", "30000000", "", 30 * time.Second, ""},
		{"interval with the own PID", "1500000", own, 1500 * time.Millisecond, ""},
		{"interval for another process", "30000000", "1", 0, ""},
		{"interval is not a number", "soon", "", 0, "WATCHDOG_USEC"},
		{"interval of zero is rejected", "0", "", 0, "WATCHDOG_USEC"},
		{"negative interval is rejected", "-1", "", 0, "WATCHDOG_USEC"},
		{"interval that overflows a duration is rejected", "9223372036854775807", "", 0, "WATCHDOG_USEC"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("WATCHDOG_USEC", tt.usec)
			t.Setenv("WATCHDOG_PID", tt.pid)
			w, err := WatchdogFromEnvironment()
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("got error %v, want one with %s", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if w.Interval != tt.want {
				t.Errorf("Interval = %v, want %v", w.Interval, tt.want)
			}
		})
	}
}

func TestWatchdogPingsOnlyWhileAllLoopsMakeProgress(t *testing.T) { // S2
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		var sent []string
		take := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			states := sent
			sent = nil
			return states
		}
		w := &Watchdog{
			Interval: 10 * time.Second,
			Log:      slog.New(slog.NewTextHandler(&log, nil)),
			Notify: func(states ...State) error {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range states {
					sent = append(sent, string(s))
				}
				return nil
			},
		}
		var p LoopMonitor
		allocator, files := p.Watch("allocator", 7*time.Second), p.Watch("manifest files", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() { defer close(stopped); w.Run(ctx, p.Healthy) }()

		time.Sleep(6 * time.Second) // pings at 0 and 5 s
		if sent, want := take(), []string{"WATCHDOG=1", "WATCHDOG=1"}; !slices.Equal(sent, want) {
			t.Fatalf("got notifications %q, want %q", sent, want)
		}
		time.Sleep(20 * time.Second) // the allocator hangs at 10, 15, 20 and 25 s
		if sent, want := take(), []string{"STATUS=hung: allocator made no progress for 7s"}; !slices.Equal(sent, want) {
			t.Fatalf("got notifications %q, want %q", sent, want)
		}
		if got := log.String(); strings.Count(got, "allocator made no progress") != 1 ||
			strings.Contains(got, "manifest files") {
			t.Errorf("hung loop is not logged exactly once:\n%s", got)
		}
		allocator.Beat()
		files.Beat()
		time.Sleep(5 * time.Second) // ping at 30 s
		if sent, want := take(), []string{"WATCHDOG=1", "STATUS=running"}; !slices.Equal(sent, want) {
			t.Errorf("got notifications %q, want %q", sent, want)
		}
		cancel()
		<-stopped
	})
}

func TestForgetRemovesLoopFromHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p LoopMonitor
		l := p.Watch("adoption", time.Second)
		time.Sleep(2 * time.Second)
		if ok, _ := p.Healthy(); ok {
			t.Fatal("loop without progress counts as healthy")
		}
		p.Forget(l)
		if ok, why := p.Healthy(); !ok {
			t.Errorf("unhealthy after Forget: %s", why)
		}
	})
}

func TestWatchPanicsWithoutTimeout(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Watch accepted a timeout of zero")
		}
	}()
	new(LoopMonitor).Watch("allocator", 0)
}

func TestWatchdogContinuesAfterNotifyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		attempts := 0
		w := &Watchdog{
			Interval: time.Second,
			Log:      slog.New(slog.NewTextHandler(&log, nil)),
			Notify:   func(...State) error { attempts++; return errors.New("no such socket") },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
		defer cancel()
		w.Run(ctx, func() (bool, string) { return true, "" })
		if attempts != 3 || !strings.Contains(log.String(), "no such socket") {
			t.Errorf("got %d attempts, want 3; log:\n%s", attempts, log.String())
		}
	})
}

func TestWatchdogWritesToSocket(t *testing.T) {
	conn := manager(t, filepath.Join(t.TempDir(), "notify"))
	w := &Watchdog{Interval: 20 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); w.Run(ctx, func() (bool, string) { return true, "" }) }()
	defer func() { cancel(); <-stopped }()
	for range 3 {
		if got := received(t, conn); got != "WATCHDOG=1" {
			t.Fatalf("service manager received %q", got)
		}
	}
}
