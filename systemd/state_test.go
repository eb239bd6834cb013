package systemd

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestStateReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		start := time.Now()
		line, changed, ready := "0 pods", make(chan struct{}, 1), make(chan struct{})
		r := StateReporter{
			Ready: ready, StartTimeout: 10 * time.Second, StartStatus: "waiting",
			Healthy: func() (bool, string) { return false, "hung" }, Status: func() string { return line },
			Subscribe: func() (<-chan struct{}, func()) {
				return changed, func() { got = append(got, "unsubscribed") }
			},
			Notify: func(states ...State) {
				got = append(got, fmt.Sprint(time.Since(start).Round(time.Second), states))
			},
			OnStartTimeout: func() { got = append(got, "timeout") },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		time.Sleep(20 * time.Second)
		close(ready)
		synctest.Wait()
		changed <- struct{}{} // without a change of the text
		synctest.Wait()
		line = "1 pods"
		changed <- struct{}{}
		time.Sleep(5 * time.Second)
		cancel()
		<-done
		want := []string{
			"0s [STATUS=waiting]", "timeout", "10s [READY=1]", "20s [READY=1 STATUS=0 pods]", "21s [STATUS=1 pods]",
			"unsubscribed",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
