package hosts

import (
	"context"
	"fmt"
	"time"
)

const (
	minPollInterval    = 20 * time.Millisecond
	maxPollInterval    = 500 * time.Millisecond
	defaultWaitTimeout = 4 * time.Minute // for a ctx that has no deadline
)

// pollInterval is how long to wait after a look that took so long: a look that costs much
// is not repeated at once, or those who wait would take the CPUs from those who
// are waited for.
func pollInterval(took time.Duration) time.Duration {
	return min(max(minPollInterval, 4*took), maxPollInterval)
}

// WaitFor asks cond again and again until it says true. It fails with what was
// waited for when cond fails, when ctx ends, and after four minutes if ctx has no
// deadline. An error that may pass belongs into cond as (false, nil).
func WaitFor(ctx context.Context, what string, cond func() (bool, error)) error {
	if _, bound := ctx.Deadline(); !bound {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultWaitTimeout)
		defer cancel()
	}
	began := time.Now()
	for {
		looked := time.Now()
		ok, err := cond()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: still not after %s: %w", what, time.Since(began).Round(time.Millisecond), context.Cause(ctx))
		case <-time.After(pollInterval(time.Since(looked))):
		}
	}
}
