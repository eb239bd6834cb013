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

// Watchdog feeds the service manager's watchdog. The zero value, with no
// Interval, does nothing.
type Watchdog struct {
	Interval      time.Duration               // how long the service manager waits for a sign of life
	Notify        func(states ...State) error // nil: Notify of this package
	Log           *slog.Logger                // nil: slog.Default
	HealthyStatus string                      // the status line after a hang is over; "": running
}

// WatchdogFromEnvironment returns the watchdog that the service manager asks this
// process for. Its Interval is zero if none is asked for. An error names the
// variable that cannot be read.
func WatchdogFromEnvironment() (*Watchdog, error) {
	text := os.Getenv("WATCHDOG_USEC")
	if text == "" {
		return &Watchdog{}, nil
	}
	usec, err := strconv.ParseInt(text, 10, 64)
	if err != nil || usec <= 0 || usec > int64(maxInterval/time.Microsecond) {
		return nil, fmt.Errorf("WATCHDOG_USEC: %q is no positive number of microseconds", text)
	}
	// A variable inherited from a parent that was meant is not for this process.
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return &Watchdog{}, nil
	}
	return &Watchdog{Interval: time.Duration(usec) * time.Microsecond}, nil
}

// maxInterval keeps the conversion to a Duration from overflowing.
const maxInterval = 365 * 24 * time.Hour

// Run asks healthy twice per Interval until ctx ends, and gives a sign of life
// for each good answer. healthy must not block: it runs on this goroutine, and
// while it does there are no signs of life. When it says no, why (which loop
// hangs, and since when) is logged and becomes the status line, once per
// reason; the service manager acts when its interval is over.
func (w *Watchdog) Run(ctx context.Context, healthy func() (ok bool, why string)) {
	if w.Interval <= 0 {
		return
	}
	tick := time.NewTicker(max(w.Interval/2, 1))
	defer tick.Stop()
	var said string
	for {
		said = w.feed(healthy, said)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// feed is one sign of life, or the reason for its absence; said is the reason
// told last, empty while all is well.
func (w *Watchdog) feed(healthy func() (bool, string), said string) string {
	ok, why := healthy()
	switch {
	case ok && said == "":
		w.tell(WatchdogPing)
	case ok:
		w.log().Info("the watchdog is fed again", "was", said)
		w.tell(WatchdogPing, Status(cmp.Or(w.HealthyStatus, "running")))
	case why != said:
		w.log().Error("the watchdog is not fed: the service manager will restart the service",
			"why", why, "interval", w.Interval)
		w.tell(Status("hung: " + why))
	}
	if ok {
		return ""
	}
	return why
}

func (w *Watchdog) tell(states ...State) {
	notify := w.Notify
	if notify == nil {
		notify = Notify
	}
	if err := notify(states...); err != nil {
		w.log().Warn("the watchdog could not be told", "err", err)
	}
}

func (w *Watchdog) log() *slog.Logger {
	if w.Log == nil {
		return slog.Default()
	}
	return w.Log
}
