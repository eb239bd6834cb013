package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// State is one or more assignments of the notification protocol, see sd_notify(3).
type State string

const (
	Ready        State = "READY=1"    // the service has started or reloaded
	Stopping     State = "STOPPING=1" // the service is stopping
	WatchdogPing State = "WATCHDOG=1" // resets the watchdog interval
)

// Reloading announces a reload of the configuration, which Ready completes. MONOTONIC_USEC
// identifies the reload request.
func Reloading() (State, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "", fmt.Errorf("monotonic clock: %w", err)
	}
	return State(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)), nil
}

// ExtendTimeout extends the service manager's timeout of the current start, reload or stop to d
// from now.
func ExtendTimeout(d time.Duration) State {
	return State(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()))
}

// Status sets the status text of the service. Line breaks become spaces, because each line is an
// assignment.
func Status(text string) State {
	return State("STATUS=" + strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ").Replace(text))
}

// Notify sends the states to the service manager in one message. It does nothing without a service
// manager, that is, if NOTIFY_SOCKET is not set.
func Notify(states ...State) error {
	if len(states) == 0 {
		return nil
	}
	if _, err := daemon.SdNotify(false, join(states)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

func join(states []State) string {
	lines := make([]string, len(states))
	for i, s := range states {
		lines[i] = string(s)
	}
	return strings.Join(lines, "\n")
}

// Notifier sends notifications to a socket that is no longer in the environment. The zero value
// does nothing.
type Notifier struct{ socket string }

// NewNotifier returns a Notifier for NOTIFY_SOCKET, which stays in the environment.
func NewNotifier() Notifier { return Notifier{os.Getenv("NOTIFY_SOCKET")} }

// ClaimNotifySocket returns a Notifier for NOTIFY_SOCKET and removes the variable from the
// environment, so that no library sends notifications.
func ClaimNotifySocket() (Notifier, error) {
	n := Notifier{os.Getenv("NOTIFY_SOCKET")}
	return n, os.Unsetenv("NOTIFY_SOCKET")
}

// Notify is like the function Notify.
func (n Notifier) Notify(states ...State) error {
	if n.socket == "" || len(states) == 0 {
		return nil
	}
	// A leading @ means the abstract namespace, for systemd and for package net.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(join(states))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// The timeout is extended by more than the interval, because a loaded machine may be late.
const (
	extendEvery = 30 * time.Second
	extendBy    = 90 * time.Second
)

// AwaitStart waits until ready is closed, ctx ends, or the timeout has passed, and reports whether
// ready was closed. Meanwhile it extends the service manager's timeout with notify while all loops
// make progress, so that waiting for another program does not fail the start. The wait is limited
// because other units wait for the start, for example during boot.
func AwaitStart(
	ctx context.Context,
	ready <-chan struct{},
	timeout time.Duration,
	healthy func() (ok bool, why string),
	notify func(...State),
) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(extendEvery)
	defer tick.Stop()
	for {
		if ok, _ := healthy(); ok {
			notify(ExtendTimeout(extendBy))
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
