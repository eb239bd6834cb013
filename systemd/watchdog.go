package systemd

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"
)

// Watchdog notifies the service manager's watchdog. The zero value has no Interval and does
// nothing.
type Watchdog struct {
	Interval      time.Duration               // interval of the service manager
	Notify        func(states ...State) error // nil: Notify of this package
	Log           *slog.Logger                // nil: slog.Default
	HealthyStatus string                      // status text after a recovery; "": running
}

// WatchdogFromEnvironment returns the watchdog that the service manager has configured for this
// process. Its Interval is zero if there is none. The error names the invalid variable.
func WatchdogFromEnvironment() (*Watchdog, error) {
	text := os.Getenv("WATCHDOG_USEC")
	if text == "" {
		return &Watchdog{}, nil
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64(maxInterval/time.Microsecond) {
		return nil, fmt.Errorf("WATCHDOG_USEC: %q is not a positive number of microseconds", text)
	}
	// The variable may be inherited from the parent process.
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return &Watchdog{}, nil
	}
	return &Watchdog{Interval: time.Duration(usec) * time.Microsecond}, nil
}

// maxInterval prevents an overflow of the Duration.
const maxInterval = 365 * 24 * time.Hour

// Run calls healthy twice per Interval until ctx ends, and notifies the watchdog if it returns
// true. healthy must not block. If it returns false, the reason is logged and becomes the status
// text, once per reason, and the service manager acts when the interval has passed.
func (w *Watchdog) Run(ctx context.Context, healthy func() (ok bool, why string)) {
	if w.Interval <= 0 {
		return
	}
	tick := time.NewTicker(max(w.Interval/2, 1))
	defer tick.Stop()
	var reported string
	for {
		reported = w.feed(healthy, reported)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// feed sends a ping, or reports why not. reported is the last reported reason, empty while healthy.
func (w *Watchdog) feed(healthy func() (bool, string), reported string) string {
	ok, why := healthy()
	switch {
	case ok && reported == "":
		w.notify(WatchdogPing)
	case ok:
		w.log().Info("watchdog pings resumed", "previousReason", reported)
		w.notify(WatchdogPing, Status(cmp.Or(w.HealthyStatus, "running")))
	case why != reported:
		w.log().Error("watchdog pings stopped; the service manager will restart the service",
			"reason", why, "interval", w.Interval)
		w.notify(Status("hung: " + why))
	}
	if ok {
		return ""
	}
	return why
}

func (w *Watchdog) notify(states ...State) {
	notify := w.Notify
	if notify == nil {
		notify = Notify
	}
	if err := notify(states...); err != nil {
		w.log().Warn("watchdog notification failed", "err", err)
	}
}

func (w *Watchdog) log() *slog.Logger {
	if w.Log == nil {
		return slog.Default()
	}
	return w.Log
}
