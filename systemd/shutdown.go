package systemd

import (
	"context"
	"log/slog"
	"os"
	"time"
)

// ShutdownOptions say what is done before a host goes down.
type ShutdownOptions struct {
	DelayNeeded time.Duration             // that Drain may take
	Drain       func(ctx context.Context) // called when a shutdown begins; logind waits for it
	OnCancel    func()                    // called when it was called off
	DropInDir   string                    // folder for logind's drop-ins; LogindDropIns
	Log         *slog.Logger
}

// dialAgain is how long after the system bus was lost, or was not there, it is asked
// for again.
const dialAgain = 5 * time.Second

// askBound bounds what is asked on the bus.
const askBound = 15 * time.Second

// WatchShutdown has logind wait with a shutdown until Drain has returned, for as long
// as ctx lives. Where there is no logind it says so once and goes on looking: logind
// and the bus may come later, or come back.
func WatchShutdown(ctx context.Context, o ShutdownOptions) {
	told := ""
	for ctx.Err() == nil {
		err := o.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != told {
			told = err.Error()
			o.Log.Warn("a shutdown is not heard of; pods end in time only by the drain unit", "err", err)
		}
		if err == nil {
			told = ""
		}
		select {
		case <-ctx.Done():
		case <-time.After(dialAgain):
		}
	}
}

// ShutdownInProgress reports whether logind says that the host goes down already. Where
// there is no logind nobody says so.
func ShutdownInProgress(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	l, err := DialLogind(ctx)
	if err != nil {
		return false
	}
	defer l.Close()
	begun, err := l.PreparingForShutdown(ctx)
	return err == nil && begun
}

// once watches on one connection until it is lost.
func (o ShutdownOptions) once(ctx context.Context) error {
	l, err := DialLogind(ctx)
	if err != nil {
		return err
	}
	defer l.Close()
	lock, err := o.lock(ctx, l)
	if err != nil {
		return err
	}
	release := func() {
		if lock != nil {
			_ = lock.Close() // logind sees its end, whatever this says
			lock = nil
		}
	}
	defer release()
	begins, err := l.PreparingForShutdown(ctx) // it may have begun before
	if err != nil {
		return err
	}
	for {
		if begins {
			o.Drain(ctx)
			release()
		} else if lock == nil { // it was called off: the next one has to wait, too
			o.OnCancel()
			if lock, err = o.lock(ctx, l); err != nil {
				return err
			}
		}
		if begins, err = l.NextShutdownSignal(ctx); err != nil {
			return err
		}
	}
}

// lock has logind wait, and for long enough.
func (o ShutdownOptions) lock(ctx context.Context, l *Logind) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	allowed, err := l.RaiseInhibitDelay(ctx, o.DropInDir, o.DelayNeeded)
	if allowed < o.DelayNeeded {
		o.Log.Warn("logind does not wait long enough with a shutdown: pods may be killed before their time; set InhibitDelayMaxSec in logind.conf",
			"waits", allowed, "needed", o.DelayNeeded, "err", err)
	}
	lock, err := l.Inhibit(ctx, "berth", "pods have to end")
	if err == nil {
		o.Log.Info("logind waits with a shutdown until pods have ended", "atMost", max(allowed, 0))
	}
	return lock, err
}
