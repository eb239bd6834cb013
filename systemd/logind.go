package systemd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names on the system bus.
const (
	logindName    = "org.freedesktop.login1"
	logindPath    = dbus.ObjectPath("/org/freedesktop/login1")
	logindManager = "org.freedesktop.login1.Manager"
	shutdownSoon  = "PrepareForShutdown"
)

// LogindDropInDir is where logind reads what is added to its configuration.
const LogindDropInDir = "/etc/systemd/logind.conf.d"

// Logind is a connection to logind, which tells of a shutdown and waits for those who
// have asked it to.
type Logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
}

// DialLogind connects to logind; the error says that there is none, or no system bus.
func DialLogind(ctx context.Context) (*Logind, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	l := &Logind{conn: conn, signals: make(chan *dbus.Signal, 8)}
	// Before anything is asked: what is told in between is not lost.
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(logindManager), dbus.WithMatchMember(shutdownSoon), dbus.WithMatchObjectPath(logindPath))
	if err == nil {
		conn.Signal(l.signals)
		_, err = l.InhibitDelayMax(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("logind: %w", err), conn.Close())
	}
	return l, nil
}

// Close ends the connection.
func (l *Logind) Close() error { return l.conn.Close() }

// Disconnected is closed when the connection is.
func (l *Logind) Disconnected() <-chan struct{} { return l.conn.Context().Done() }

func (l *Logind) property(ctx context.Context, name string, into any) error {
	var v dbus.Variant
	err := l.conn.Object(logindName, logindPath).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, logindManager, name).Store(&v)
	if err == nil {
		err = v.Store(into)
	}
	if err != nil {
		return fmt.Errorf("ask for %s: %w", name, err)
	}
	return nil
}

// InhibitDelayMax is how long logind waits at most for those who ask it to (InhibitDelayMaxSec).
func (l *Logind) InhibitDelayMax(ctx context.Context) (time.Duration, error) {
	var usec uint64
	err := l.property(ctx, "InhibitDelayMaxUSec", &usec)
	return time.Duration(usec) * time.Microsecond, err
}

// PreparingForShutdown reports whether a shutdown has begun.
func (l *Logind) PreparingForShutdown(ctx context.Context) (begun bool, err error) {
	return begun, l.property(ctx, "PreparingForShutdown", &begun)
}

// Inhibit asks logind to wait with a shutdown until the lock is closed, for at most
// DelayMax.
func (l *Logind) Inhibit(ctx context.Context, who, why string) (lock *os.File, err error) {
	var fd dbus.UnixFD
	err = l.conn.Object(logindName, logindPath).CallWithContext(ctx, logindManager+".Inhibit", 0, "shutdown", who, why, "delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("ask logind to wait with a shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// NextShutdownSignal waits until a shutdown begins (true) or is called off (false).
func (l *Logind) NextShutdownSignal(ctx context.Context) (begins bool, err error) {
	for {
		select {
		case s, ok := <-l.signals:
			if !ok {
				return false, errors.New("the connection to the system bus is lost")
			}
			if s.Name == logindManager+"."+shutdownSoon && len(s.Body) == 1 {
				if begins, ok := s.Body[0].(bool); ok {
					return begins, nil
				}
			}
		case <-l.Disconnected():
			return false, errors.New("the connection to the system bus is lost")
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// dropIn is berth's own; the last that is read wins.
const dropIn = "99-berth.conf"

// InhibitDelayFile is what AllowDelay makes in a folder.
func InhibitDelayFile(dir string) string { return filepath.Join(dir, dropIn) }

// reread has logind read its configuration again, as it does when it is told so.
func (l *Logind) reread(ctx context.Context) error {
	err := l.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "all", int32(1)).Err
	if err != nil {
		return fmt.Errorf("have logind read its configuration: %w", err)
	}
	return nil
}

// RemoveInhibitDelay takes away what AllowDelay has made in the folder, the folder too if
// nothing else is in it, and has logind, if there is one, read its configuration. It
// reports whether there was anything.
func RemoveInhibitDelay(ctx context.Context, dir string) (was bool, err error) {
	err = os.Remove(InhibitDelayFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	_ = os.Remove(dir) // it has files of others, else
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	l, err := DialLogind(ctx)
	if err != nil {
		return true, nil // nobody has read it
	}
	defer l.Close()
	return true, l.reread(ctx)
}

// RaiseInhibitDelay has logind wait that long for those who ask it to: by a file in the
// folder of drop-ins, which logind is made to read. It returns how long logind waits
// now.
func (l *Logind) RaiseInhibitDelay(ctx context.Context, dir string, d time.Duration) (time.Duration, error) {
	now, err := l.InhibitDelayMax(ctx)
	if err != nil || now >= d {
		return now, err
	}
	seconds := int64((d + time.Second - 1) / time.Second)
	text := fmt.Sprintf("# Made by berth for shutdownGracePeriod: pods need as long to end.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(InhibitDelayFile(dir), []byte(text), 0o644)); err != nil {
		return now, fmt.Errorf("raise InhibitDelayMaxSec: %w", err)
	}
	if err := l.reread(ctx); err != nil {
		return now, err
	}
	for wait := 20 * time.Millisecond; ; wait *= 2 { // it reads after the signal, some time
		if now, err = l.InhibitDelayMax(ctx); err != nil || now >= d || wait > time.Second {
			return now, err
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-time.After(wait):
		}
	}
}
