package systemd

import (
	"context"
	"log/slog"
	"os"
	"time"
)

// ShutdownOptions configures WatchShutdown.
type ShutdownOptions struct {
	DelayNeeded time.Duration             // maximum duration of Drain
	Drain       func(ctx context.Context) // called when a shutdown starts; logind waits for it
	OnCancel    func()                    // called when the shutdown is canceled
	DropInDir   string                    // usually LogindDropInDir
	Log         *slog.Logger
}

// redialInterval is the interval of attempts to connect to the system bus.
const redialInterval = 5 * time.Second

// dbusTimeout limits D-Bus calls.
const dbusTimeout = 15 * time.Second

// WatchShutdown delays shutdowns until Drain has returned, until ctx ends. If logind is not
// available, it logs this once and retries, because logind and the bus may start later or restart.
func WatchShutdown(ctx context.Context, o ShutdownOptions) {
	lastErr := ""
	for ctx.Err() == nil {
		err := o.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != lastErr {
			lastErr = err.Error()
			o.Log.Warn("shutdown watch unavailable; only the drain unit delays a shutdown", "err", err)
		}
		if err == nil {
			lastErr = ""
		}
		select {
		case <-ctx.Done():
		case <-time.After(redialInterval):
		}
	}
}

// ShutdownInProgress reports whether logind has started a shutdown. It returns false if logind is
// not available.
func ShutdownInProgress(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	l, err := DialLogind(ctx)
	if err != nil {
		return false
	}
	defer l.Close()
	preparing, err := l.PreparingForShutdown(ctx)
	return err == nil && preparing
}

// watchOnce watches on one connection until it is lost.
func (o ShutdownOptions) watchOnce(ctx context.Context) error {
	l, err := DialLogind(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	lock, err := o.inhibit(ctx, l)
	if err != nil {
		return err
	}
	release := func() {
		if lock != nil {
			_ = lock.Close() // closing releases the lock even if it returns an error
			lock = nil
		}
	}
	defer release()
	starting, err := l.PreparingForShutdown(ctx) // the shutdown may have started earlier
	if err != nil {
		return err
	}
	for {
		if starting {
			o.Drain(ctx)
			release()
		} else if lock == nil { // canceled: prepare for the next shutdown
			o.OnCancel()
			if lock, err = o.inhibit(ctx, l); err != nil {
				return err
			}
		}
		if starting, err = l.NextShutdownSignal(ctx); err != nil {
			return err
		}
	}
}

// inhibit raises the maximum delay and takes the inhibitor lock.
func (o ShutdownOptions) inhibit(ctx context.Context, l *Logind) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, dbusTimeout)
	defer cancel()
	allowed, err := l.RaiseInhibitDelay(ctx, o.DropInDir, o.DelayNeeded)
	if allowed < o.DelayNeeded {
		o.Log.Warn("shutdown inhibit delay too short; pods may be killed early; set InhibitDelayMaxSec in logind.conf",
			"allowed", allowed, "needed", o.DelayNeeded, "err", err)
	}
	lock, err := l.Inhibit(ctx, "berth", "terminating pods")
	if err == nil {
		o.Log.Info("shutdown inhibitor lock acquired", "maxDelay", max(allowed, 0))
	}
	return lock, err
}
