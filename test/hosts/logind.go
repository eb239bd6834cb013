package hosts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	logindName    = "org.freedesktop.login1"
	logindManager = logindName + ".Manager"
	logindPath    = dbus.ObjectPath("/org/freedesktop/login1")
)

// Logind is a fake logind on a private D-Bus. It hands out inhibitor locks and announces a
// shutdown, but never performs one.
type Logind struct {
	Env string // environment variable that points an agent to the bus

	daemon    *exec.Cmd
	conn      *dbus.Conn
	locks     chan *os.File // read ends of the locks: a read ends when the agent releases the lock
	mu        sync.Mutex
	preparing bool
}

// inhibitorTimeout is the time after which an inhibitor lock has certainly been sent.
const inhibitorTimeout = 5 * time.Second

// StartLogind starts a dbus-daemon with a fake logind on it. Its files are in dir.
func StartLogind(dir string) (*Logind, error) {
	address := "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	err := os.WriteFile(config,
		fmt.Appendf(nil, `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/><allow user="*"/></policy></busconfig>`, address), 0o600)
	if err != nil {
		return nil, err
	}
	l := &Logind{Env: "DBUS_SYSTEM_BUS_ADDRESS=" + address, locks: make(chan *os.File, 10)}
	l.daemon = exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := l.daemon.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.daemon.Start(); err != nil {
		return nil, err
	}
	if err := l.serve(out, address); err != nil {
		return nil, errors.Join(fmt.Errorf("start fake logind: %w", err), l.Close())
	}
	return l, nil
}

func (l *Logind) serve(out io.Reader, address string) (err error) {
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // printed when the daemon listens
		return err
	}
	if l.conn, err = dbus.Connect(address); err != nil {
		return err
	}
	_, err = l.conn.RequestName(logindName, dbus.NameFlagDoNotQueue)
	return errors.Join(err,
		l.conn.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, logindPath, logindManager),
		l.conn.ExportMethodTable(map[string]any{"Get": l.get}, logindPath, "org.freedesktop.DBus.Properties"))
}

// Close stops the daemon.
func (l *Logind) Close() error {
	var err error
	if l.conn != nil {
		err = l.conn.Close()
	}
	_ = l.daemon.Process.Kill()
	_ = l.daemon.Wait()
	for {
		select {
		case f := <-l.locks:
			f.Close()
		default:
			return err
		}
	}
}

func (l *Logind) inhibit(string, string, string, string) (dbus.UnixFD, *dbus.Error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.locks <- r
	fd := dbus.UnixFD(w.Fd())
	time.AfterFunc(inhibitorTimeout, func() { w.Close() })
	return fd, nil
}

func (l *Logind) get(_, name string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "PreparingForShutdown" {
		return dbus.MakeVariant(l.preparing), nil
	}
	return dbus.MakeVariant(uint64(time.Hour / time.Microsecond)), nil
}

// StartShutdown announces a shutdown, which then waits for the inhibitor locks.
func (l *Logind) StartShutdown() error {
	l.mu.Lock()
	l.preparing = true
	l.mu.Unlock()
	return l.conn.Emit(logindPath, logindManager+".PrepareForShutdown", true)
}

// Reset cancels the shutdown.
func (l *Logind) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.preparing = false
}

// NextInhibitor returns the agent's next inhibitor lock. released returns nil when the agent has
// released it and is called once.
func (l *Logind) NextInhibitor(ctx context.Context) (released func(context.Context) error, err error) {
	select {
	case f := <-l.locks:
		return func(ctx context.Context) error {
			defer f.Close()
			defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Now()) })()
			if n, err := f.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
				return fmt.Errorf("the agent does not release its inhibitor lock: %w", err)
			}
			return nil
		}, nil
	case <-ctx.Done():
		return nil, errors.New("the agent has not taken an inhibitor lock")
	}
}
