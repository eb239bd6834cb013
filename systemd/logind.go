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

// D-Bus names.
const (
	logindName         = "org.freedesktop.login1"
	logindPath         = dbus.ObjectPath("/org/freedesktop/login1")
	logindManager      = "org.freedesktop.login1.Manager"
	prepareForShutdown = "PrepareForShutdown"
)

// LogindDropInDir is logind's drop-in directory.
const LogindDropInDir = "/etc/systemd/logind.conf.d"

// Logind is a connection to logind, which announces a shutdown and delays it for holders of an
// inhibitor lock.
type Logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
	cancel  context.CancelFunc
}

// DialLogind connects to logind. It returns an error if logind or the system bus is not available. The connection
// stays open until Close, also when ctx ends: a lock in a response must not be lost.
func DialLogind(ctx context.Context) (*Logind, error) {
	connCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(connCtx))
	stop()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	l := &Logind{conn: conn, signals: make(chan *dbus.Signal, 8), cancel: cancel}
	// Subscribe before the first call, so that no signal is missed.
	err = conn.AddMatchSignalContext(
		ctx,
		dbus.WithMatchInterface(logindManager),
		dbus.WithMatchMember(prepareForShutdown),
		dbus.WithMatchObjectPath(logindPath),
	)
	if err == nil {
		conn.Signal(l.signals)
		_, err = l.InhibitDelayMax(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("logind: %w", err), l.Close())
	}
	return l, nil
}

// Close closes the connection.
func (l *Logind) Close() error {
	defer l.cancel()
	return l.conn.Close()
}

// Disconnected is closed when the connection is lost.
func (l *Logind) Disconnected() <-chan struct{} { return l.conn.Context().Done() }

func (l *Logind) property(ctx context.Context, name string, into any) error {
	var v dbus.Variant
	err := l.conn.Object(
		logindName,
		logindPath,
	).CallWithContext(
		ctx,
		"org.freedesktop.DBus.Properties.Get",
		0,
		logindManager,
		name,
	).Store(
		&v,
	)
	if err == nil {
		err = v.Store(into)
	}
	if err != nil {
		return fmt.Errorf("get property %s: %w", name, err)
	}
	return nil
}

// InhibitDelayMax returns the maximum delay of a shutdown (InhibitDelayMaxSec).
func (l *Logind) InhibitDelayMax(ctx context.Context) (time.Duration, error) {
	var usec uint64
	err := l.property(ctx, "InhibitDelayMaxUSec", &usec)
	return time.Duration(usec) * time.Microsecond, err
}

// PreparingForShutdown reports whether a shutdown has started.
func (l *Logind) PreparingForShutdown(ctx context.Context) (preparing bool, err error) {
	return preparing, l.property(ctx, "PreparingForShutdown", &preparing)
}

// Inhibit delays a shutdown until the lock is closed, for at most InhibitDelayMax. A canceled ctx does not end the
// call, only the timeout does: the lock in a dropped response would be held until the process exits.
func (l *Logind) Inhibit(ctx context.Context, who, why string) (lock *os.File, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dbusTimeout)
	defer cancel()
	var fd dbus.UnixFD
	err = l.conn.Object(
		logindName,
		logindPath,
	).CallWithContext(
		ctx,
		logindManager+".Inhibit",
		0,
		"shutdown",
		who,
		why,
		"delay",
	).Store(
		&fd,
	)
	if err != nil {
		return nil, fmt.Errorf("inhibit shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// NextShutdownSignal waits until a shutdown starts (true) or is canceled (false).
func (l *Logind) NextShutdownSignal(ctx context.Context) (starting bool, err error) {
	for {
		select {
		case s, ok := <-l.signals:
			if !ok {
				return false, errors.New("system bus connection lost")
			}
			if s.Name == logindManager+"."+prepareForShutdown && len(s.Body) == 1 {
				if starting, ok := s.Body[0].(bool); ok {
					return starting, nil
				}
			}
		case <-l.Disconnected():
			return false, errors.New("system bus connection lost")
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// dropIn is the name of berth's drop-in. The last file in the directory takes precedence.
const dropIn = "99-berth.conf"

// InhibitDelayFile returns the path of the file that RaiseInhibitDelay creates in a directory.
func InhibitDelayFile(dir string) string { return filepath.Join(dir, dropIn) }

// reloadConfig makes logind reload its configuration by SIGHUP.
func (l *Logind) reloadConfig(ctx context.Context) error {
	err := l.conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").
		CallWithContext(ctx, "org.freedesktop.systemd1.Manager.KillUnit", 0, "systemd-logind.service", "all",
			int32(1)).Err
	if err != nil {
		return fmt.Errorf("reload logind configuration: %w", err)
	}
	return nil
}

// RemoveInhibitDelay removes the file of RaiseInhibitDelay, and the directory if it is empty, and
// makes logind reload its configuration. It reports whether the file existed.
func RemoveInhibitDelay(ctx context.Context, dir string) (existed bool, err error) {
	err = os.Remove(InhibitDelayFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	_ = os.Remove(dir) // fails if other files are left
	ctx, cancel := context.WithTimeout(ctx, dbusTimeout)
	defer cancel()
	l, err := DialLogind(ctx)
	if err != nil {
		return true, nil // logind is not running
	}
	defer l.Close()
	return true, l.reloadConfig(ctx)
}

// RaiseInhibitDelay raises InhibitDelayMaxSec to d with a drop-in file. It returns the resulting
// maximum delay.
func (l *Logind) RaiseInhibitDelay(ctx context.Context, dir string, d time.Duration) (time.Duration, error) {
	now, err := l.InhibitDelayMax(ctx)
	if err != nil || now >= d {
		return now, err
	}
	seconds := int64((d + time.Second - 1) / time.Second)
	text := fmt.Sprintf("# Written by berth for shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(InhibitDelayFile(dir), []byte(text),
		0o644)); err != nil {
		return now, fmt.Errorf("raise InhibitDelayMaxSec: %w", err)
	}
	if err := l.reloadConfig(ctx); err != nil {
		return now, err
	}
	for wait := 20 * time.Millisecond; ; wait *= 2 { // logind reloads asynchronously
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
