package systemd

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAwaitStart(t *testing.T) {
	const bound = 110 * time.Second
	for _, tt := range []struct {
		sentence  string
		readyAt   time.Duration // zero: never
		hungFrom  time.Duration // zero: never
		leavesAt  time.Duration // zero: never
		came      bool
		after     time.Duration
		extendsAt []time.Duration
	}{
		{"what is ready at once is told to be", time.Nanosecond, 0, 0, true, time.Nanosecond, []time.Duration{0}},
		{"the timeout is put off again and again", 75 * time.Second, 0, 0, true, 75 * time.Second, []time.Duration{0, 30 * time.Second, 60 * time.Second}},
		{"whoever hangs is left to the timeout", 100 * time.Second, 40 * time.Second, 0, true, 100 * time.Second, []time.Duration{0, 30 * time.Second}},
		{"others do not wait for ever", 0, 0, 0, false, bound, []time.Duration{0, 30 * time.Second, 60 * time.Second, 90 * time.Second}},
		{"who leaves does not wait", 0, 0, 10 * time.Second, false, 10 * time.Second, []time.Duration{0}},
	} {
		t.Run(tt.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				begin := time.Now()
				ready := make(chan struct{})
				if tt.readyAt > 0 {
					time.AfterFunc(tt.readyAt, func() { close(ready) })
				}
				if tt.leavesAt > 0 {
					time.AfterFunc(tt.leavesAt, leave)
				}
				var extends []time.Duration
				came := AwaitStart(ctx, ready, bound, func() (bool, string) {
					return tt.hungFrom == 0 || time.Since(begin) < tt.hungFrom, "hung"
				}, func(states ...State) {
					if !slices.Equal(states, []State{"EXTEND_TIMEOUT_USEC=90000000"}) {
						t.Errorf("it tells %q", states)
					}
					extends = append(extends, time.Since(begin))
				})
				if took := time.Since(begin); came != tt.came || took != tt.after || !slices.Equal(extends, tt.extendsAt) {
					t.Errorf(
						"came %v after %v, told at %v; want %v after %v, told at %v",
						came,
						took,
						extends,
						tt.came,
						tt.after,
						tt.extendsAt,
					)
				}
			})
		})
	}
}
