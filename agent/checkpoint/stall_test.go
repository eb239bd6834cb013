package checkpoint

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestHangingDiskDelaysOneWait: the first caller waits for stallTimeout, later ones do not wait, and a slow commit is
// no failure.
func TestHangingDiskDelaysOneWait(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	synctest.Test(t, func(t *testing.T) {
		s, _, err := Open(Options{Path: path, HistoryDelay: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = s.Run(ctx) })
		hang := make(chan struct{})
		commitHangs := func() { // a history is read in the middle of a commit
			s.Put("pod", Record{})
			s.PutHistory("pod", func() History { <-hang; return History{} })
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		flush := func(want error, wait time.Duration) {
			t.Helper()
			start := time.Now()
			if err := s.Flush(t.Context()); !errors.Is(err, want) || time.Since(start) > wait {
				t.Errorf("got %v after %v, want %v after at most %v", err, time.Since(start), want, wait)
			}
		}
		commitHangs()
		flush(ErrDegraded, stallTimeout)
		flush(ErrDegraded, 0)
		if bad, why := s.Degraded(); !bad || why == "" {
			t.Errorf("a store whose disk hangs is not degraded (%q)", why)
		}
		close(hang)
		synctest.Wait()
		flush(nil, time.Second)
		hang = make(chan struct{})
		commitHangs()
		time.AfterFunc(stallTimeout-3*time.Second, func() { close(hang) })
		flush(nil, stallTimeout)
		if bad, why := s.Degraded(); bad {
			t.Errorf("degraded after a slow commit: %s", why)
		}
		stop()
		run.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
