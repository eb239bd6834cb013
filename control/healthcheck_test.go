package control

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

func TestHealthCheckIsCached(t *testing.T) {
	t.Parallel()
	now, runs, failure := time.Unix(1e9, 0), 0, error(nil)
	c := newCachedCheck(func(ctx context.Context) error { runs++; return errors.Join(failure, ctx.Err()) })
	c.now = func() time.Time { return now }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	request := httptest.NewRequestWithContext(ended, http.MethodGet, "https://server/readyz", http.NoBody)
	down := errors.New("down")
	for _, row := range []struct {
		name    string
		after   time.Duration
		failure error
		runs    int
		want    error
	}{
		{"first request, of a client that has left", 0, nil, 1, nil},
		{"a result is reused", healthyPeriod - 1, down, 1, nil},
		{"a result expires", 1, down, 2, down},
		{"a failure is reused", unhealthyPeriod - 1, nil, 2, down},
		{"a failure expires earlier", 1, nil, 3, nil},
		{"the clock was set back", -time.Hour, down, 4, down},
	} {
		now, failure = now.Add(row.after), row.failure
		if err := c.check(request); !errors.Is(err, row.want) || row.want == nil && err != nil || runs != row.runs {
			t.Errorf("%s: got %v after %d checks, want %v after %d", row.name, err, runs, row.want, row.runs)
		}
	}
}

// TestHealthChecksDoNotRunInParallel sends many requests at once.
func TestHealthChecksDoNotRunInParallel(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	var all sync.WaitGroup
	runs := 0 // the race detector reports checks in parallel
	c := newCachedCheck(func(context.Context) error { runs++; return nil })
	c.now = func() time.Time { return now }
	for range 100 {
		all.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
			if err := c.check(r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if runs != 1 {
		t.Errorf("got %d checks, want 1", runs)
	}
}
