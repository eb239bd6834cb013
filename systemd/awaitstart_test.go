package systemd

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwaitStart(t *testing.T) {
	const timeout = 110 * time.Second
	for _, tt := range []struct {
		name      string
		readyAt   time.Duration // zero: never
		hungFrom  time.Duration // zero: never
		cancelAt  time.Duration // zero: never
		ready     bool
		duration  time.Duration
		extendsAt []time.Duration
	}{
		{"ready immediately", time.Nanosecond, 0, 0, true, time.Nanosecond, []time.Duration{0}},
		{"the startup timeout is extended repeatedly", 75 * time.Second, 0, 0, true, 75 * time.Second,
			[]time.Duration{0, 30 * time.Second, 60 * time.Second}},
		{"a hung loop stops the extensions", 100 * time.Second, 40 * time.Second, 0, true, 100 * time.Second,
			[]time.Duration{0, 30 * time.Second}},
		{"the wait is limited", 0, 0, 0, false, timeout, []time.Duration{0, 30 * time.Second, 60 * time.Second,
			90 * time.Second}},
		{"a canceled context stops the wait", 0, 0, 10 * time.Second, false, 10 * time.Second, []time.Duration{0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				start := time.Now()
				ready := make(chan struct{})
				if tt.readyAt > 0 {
					time.AfterFunc(tt.readyAt, func() { close(ready) })
				}
				if tt.cancelAt > 0 {
					time.AfterFunc(tt.cancelAt, cancel)
				}
				var extends []time.Duration
				gotReady := AwaitStart(ctx, ready, timeout, func() (bool, string) {
					return tt.hungFrom == 0 || time.Since(start) < tt.hungFrom, "hung"
				}, func(states ...State) {
					if !slices.Equal(states, []State{"EXTEND_TIMEOUT_USEC=90000000"}) {
						t.Errorf("got notification %q", states)
					}
					extends = append(extends, time.Since(start))
				})
				if took := time.Since(start); gotReady != tt.ready || took != tt.duration ||
					!slices.Equal(extends, tt.extendsAt) {
					t.Errorf(
						"got ready %v after %v, extensions at %v; want %v after %v, extensions at %v",
						gotReady,
						took,
						extends,
						tt.ready,
						tt.duration,
						tt.extendsAt,
					)
				}
			})
		})
	}
}
