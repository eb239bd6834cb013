package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// State is one assignment of the notification protocol, sd_notify(3).
type State string

const (
	Ready        State = "READY=1"    // start-up is over
	Stopping     State = "STOPPING=1" // the end has begun
	WatchdogPing State = "WATCHDOG=1" // the watchdog may wait for another interval
)

// Reloading says that the configuration is taken anew, which Ready ends. The
// time in it tells the service manager which of its requests is answered.
func Reloading() (State, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return "", fmt.Errorf("monotonic clock: %w", err)
	}
	return State(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)), nil
}

// ExtendTimeout puts the service manager's timeout for what is under way, a start, a reload or
// an end, off until d from now.
func ExtendTimeout(d time.Duration) State {
	return State(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", d.Microseconds()))
}

// Status is the line that `systemctl status` shows. Line ends in text become
// spaces: a line of its own would be another assignment.
func Status(text string) State {
	return State("STATUS=" + strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ").Replace(text))
}

// Notify tells the service manager in one message. Without one (NOTIFY_SOCKET
// is not set) it does nothing.
func Notify(states ...State) error {
	return Notifier{os.Getenv("NOTIFY_SOCKET")}.Notify(states...)
}

// Notifier is the service manager, if there is one.
type Notifier struct{ socket string }

// ClaimNotifySocket returns the service manager of this process and takes it out of the
// environment: a library that would tell it something by itself does not.
func ClaimNotifySocket() (Notifier, error) {
	m := Notifier{os.Getenv("NOTIFY_SOCKET")}
	return m, os.Unsetenv("NOTIFY_SOCKET")
}

// Notify is Notify of the package.
func (m Notifier) Notify(states ...State) error {
	if m.socket == "" || len(states) == 0 {
		return nil
	}
	// A leading @ means the abstract namespace, to systemd and to net alike.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer func() { _ = conn.Close() }()
	lines := make([]string, len(states))
	for i, s := range states {
		lines[i] = string(s)
	}
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
