package systemd

import (
	"context"
	"time"
)

// How the service manager is told to wait. It is told for longer than until the next
// time: a machine under load is late.
const (
	extendEvery = 30 * time.Second
	extendBy    = 90 * time.Second
)

// AwaitStart waits for ready, for bound at most, and reports whether it was that which
// came. Meanwhile the service manager's own timeout for the start or the reload is put
// off, by tell, for as long as healthy says that all loops make progress: who waits for
// another program is not to be ended for it. There is a bound because others wait for
// the start to be over: whoever asked for it, and at a boot all that comes after.
func AwaitStart(ctx context.Context, ready <-chan struct{}, bound time.Duration, healthy func() (ok bool, why string), tell func(...State)) bool {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(extendEvery)
	defer tick.Stop()
	for {
		if ok, _ := healthy(); ok {
			tell(ExtendTimeout(extendBy))
		}
		select {
		case <-ready:
			return true
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}
