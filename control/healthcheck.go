package control

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	// healthCheckTimeout limits a check of the store.
	healthCheckTimeout = 2 * time.Second
	// The result of a check is reused for this time, because any client may request the health. It is shorter after
	// a failure, so that a starting server is ready early.
	healthyPeriod   = time.Second
	unhealthyPeriod = 100 * time.Millisecond
)

// checkEtcd checks that the store answers.
func (s *Server) checkEtcd(ctx context.Context) error {
	_, err := s.storageFactory.client.Client.Get(ctx, keyPrefix+"/health")
	return err
}

// cachedCheck is a health check whose results are reused. It runs at most one check at a time. It is safe for
// concurrent use.
type cachedCheck struct {
	run func(context.Context) error
	now func() time.Time

	mu         sync.Mutex
	validUntil time.Time // zero: no result
	err        error
}

func newCachedCheck(run func(context.Context) error) *cachedCheck {
	return &cachedCheck{run: run, now: time.Now}
}

// check returns the last result, or a new one if it is too old. A request that ends early does not affect the check,
// because other requests use its result.
func (c *cachedCheck) check(r *http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.now(); now.Before(c.validUntil) && c.validUntil.Sub(now) <= healthyPeriod {
		return c.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), healthCheckTimeout)
	defer cancel()
	c.err = c.run(ctx)
	period := healthyPeriod
	if c.err != nil {
		period = unhealthyPeriod
	}
	c.validUntil = c.now().Add(period)
	return c.err
}
