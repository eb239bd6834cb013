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
		sentence  string
		usec, pid string
		want      time.Duration
		wantErr   string
	}{
		{"an interval without a pid is for us", "30000000", "", 30 * time.Second, ""},
		{"an interval with our pid is for us", "1500000", own, 1500 * time.Millisecond, ""},
		{"an interval for another process is not for us", "30000000", "1", 0, ""},
		{"words are no interval", "soon", "", 0, "WATCHDOG_USEC"},
		{"nothing is no interval to keep", "0", "", 0, "WATCHDOG_USEC"},
		{"a negative interval is refused", "-1", "", 0, "WATCHDOG_USEC"},
		{"an interval that overflows a duration is refused", "9223372036854775807", "", 0, "WATCHDOG_USEC"},
	} {
		t.Run(tt.sentence, func(t *testing.T) {
			t.Setenv("WATCHDOG_USEC", tt.usec)
			t.Setenv("WATCHDOG_PID", tt.pid)
			w, err := WatchdogFromEnvironment()
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one that names %s", err, tt.wantErr)
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

func TestS2WatchdogPingsOnlyWhileAllLoopsMakeProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		var told []string
		take := func() []string {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			was := told
			told = nil
			return was
		}
		w := &Watchdog{
			Interval: 10 * time.Second,
			Log:      slog.New(slog.NewTextHandler(&log, nil)),
			Notify: func(states ...State) error {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range states {
					told = append(told, string(s))
				}
				return nil
			},
		}
		var p LoopMonitor
		allocator, files := p.Watch("allocator", 7*time.Second), p.Watch("manifest files", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); w.Run(ctx, p.Healthy) }()

		time.Sleep(6 * time.Second) // pings at 0 and 5 s
		if told, want := take(), []string{"WATCHDOG=1", "WATCHDOG=1"}; !slices.Equal(told, want) {
			t.Fatalf("told %q, want %q", told, want)
		}
		time.Sleep(20 * time.Second) // the allocator hangs at 10, 15, 20 and 25 s
		if told, want := take(), []string{"STATUS=hung: allocator made no progress for 7s"}; !slices.Equal(told, want) {
			t.Fatalf("told %q, want %q", told, want)
		}
		if got := log.String(); strings.Count(got, "allocator made no progress") != 1 || strings.Contains(got, "manifest files") {
			t.Errorf("the log should name the loop that hangs once:\n%s", got)
		}
		allocator.Beat()
		files.Beat()
		time.Sleep(5 * time.Second) // ping at 30 s
		if told, want := take(), []string{"WATCHDOG=1", "STATUS=running"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		cancel()
		<-ended
	})
}

func TestForgottenLoopIsNotHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p LoopMonitor
		l := p.Watch("adoption", time.Second)
		time.Sleep(2 * time.Second)
		if ok, _ := p.Healthy(); ok {
			t.Fatal("a silent loop counts as healthy")
		}
		p.Forget(l)
		if ok, why := p.Healthy(); !ok {
			t.Errorf("not healthy: %s", why)
		}
	})
}

func TestWatchPanicsWithoutQuietTime(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Watch accepted a quiet time of zero")
		}
	}()
	new(LoopMonitor).Watch("allocator", 0)
}

func TestWatchdogContinuesAfterNotifyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tries := 0
		w := &Watchdog{
			Interval: time.Second,
			Log:      slog.New(slog.NewTextHandler(&log, nil)),
			Notify:   func(...State) error { tries++; return errors.New("no such socket") },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1200*time.Millisecond)
		defer cancel()
		w.Run(ctx, func() (bool, string) { return true, "" })
		if tries != 3 || !strings.Contains(log.String(), "no such socket") {
			t.Errorf("%d tries, want 3; log:\n%s", tries, log.String())
		}
	})
}

func TestWatchdogWritesToSocket(t *testing.T) {
	conn := manager(t, filepath.Join(t.TempDir(), "notify"))
	w := &Watchdog{Interval: 20 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx, func() (bool, string) { return true, "" }) }()
	defer func() { cancel(); <-ended }()
	for range 3 {
		if got := received(t, conn); got != "WATCHDOG=1" {
			t.Fatalf("the service manager received %q", got)
		}
	}
}
