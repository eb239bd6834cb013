package hosts

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"time"
)

const (
	minPollInterval    = 20 * time.Millisecond
	maxPollInterval    = time.Second
	defaultWaitTimeout = 8 * time.Minute // for a context without deadline
)

// pollInterval returns the time until the next check from the duration of the last one and of the
// wait so far. An expensive check is repeated less often, to leave the CPUs to the processes under
// test, and a long wait may end a little later.
func pollInterval(took, waited time.Duration) time.Duration {
	return min(max(minPollInterval, 12*took, waited/20), maxPollInterval)
}

// WaitFor calls cond until it returns true. It fails with the name of the condition when cond
// fails, when ctx ends, and after four minutes if ctx has no deadline. For a transient error cond
// returns (false, nil).
func WaitFor(ctx context.Context, what string, cond func() (bool, error)) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultWaitTimeout)
		defer cancel()
	}
	start := time.Now()
	for {
		checkStart := time.Now()
		ok, err := cond()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			took := time.Since(start).Round(time.Millisecond)
			return fmt.Errorf("wait for %s: timed out after %s: %w", what, took, context.Cause(ctx))
		case <-time.After(pollInterval(time.Since(checkStart), time.Since(start))):
		}
	}
}

// SetDefaultParallelism runs n tests of this program at once unless -parallel is set. Tests on real
// hosts mostly wait, and the default is the number of CPUs. It parses the flags of the program and
// is called from TestMain.
func SetDefaultParallelism(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", strconv.Itoa(n)) // a number is always valid
	}
}
