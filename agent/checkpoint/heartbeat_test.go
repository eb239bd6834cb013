package checkpoint

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunSendsHeartbeats verifies that a watchdog can distinguish a hang from an idle or degraded
// store.
func TestRunSendsHeartbeats(t *testing.T) {
	for what, path := range map[string]string{
		"with nothing to do": filepath.Join(t.TempDir(), "berth.db"), "in memory only": "/proc/none/berth.db",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var beats atomic.Int64
				s, _, err := Open(Options{Path: path, Heartbeat: func() { beats.Add(1) }})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				var run sync.WaitGroup
				run.Go(func() { _ = s.Run(ctx) })
				time.Sleep(heartbeatInterval)
				for range 5 {
					before := beats.Load()
					time.Sleep(heartbeatInterval + time.Second)
					if beats.Load() == before {
						t.Errorf("no heartbeat for %v", heartbeatInterval+time.Second)
					}
				}
				stop()
				run.Wait()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
