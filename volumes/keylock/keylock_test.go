package keylock

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
)

func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		unlock, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.Lock(t.Context(), "b") // another key does not wait
		if err != nil {
			t.Fatal(err)
		}
		other()
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Lock(canceled, "a"); err == nil {
			t.Error("a held lock was acquired")
		}
		var wg sync.WaitGroup
		inside, most := 0, 0
		for range 5 {
			wg.Go(func() {
				unlock, err := l.Lock(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				inside++ // the race detector and most find two holders
				most = max(most, inside)
				inside--
				unlock()
			})
		}
		synctest.Wait()
		if most != 0 {
			t.Error("the lock was acquired while it was held")
		}
		unlock()
		wg.Wait()
		if most != 1 || len(l.held) > 0 {
			t.Errorf("%d holders at once, locks left: %v", most, l.held)
		}
	})
}
