package systemd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// fakeLogind emulates logind and systemd on a private bus. It announces a shutdown and records the
// inhibitor locks.
type fakeLogind struct {
	t              *testing.T
	conn           *dbus.Conn
	dropIns        string
	mu             sync.Mutex
	delay          time.Duration
	defaultDelay   time.Duration // without a drop-in
	preparing      bool
	ignoresDropIns bool
	locks          []*os.File // local ends: a read returns when the lock is released
	whats          []string
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>
<allow own="*"/><allow user="*"/></policy></busconfig>`

// startBus starts a dbus-daemon and sets it as the system bus of this process.
func startBus(t *testing.T, dir string) (stop func()) {
	t.Helper()
	socket, config := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, busConfig, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	cmd := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it listens
		t.Fatalf("dbus-daemon: %q %v", line, err)
	}
	return stop
}

func newFakeLogind(t *testing.T, delay time.Duration) *fakeLogind {
	t.Helper()
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s := &fakeLogind{t: t, conn: conn, dropIns: filepath.Join(t.TempDir(), "logind.conf.d"), delay: delay,
		defaultDelay: delay}
	for _, err := range []error{
		conn.ExportMethodTable(map[string]any{"Inhibit": s.inhibit}, logindPath, logindManager),
		conn.ExportMethodTable(map[string]any{"Get": s.get}, logindPath, "org.freedesktop.DBus.Properties"),
		conn.ExportMethodTable(map[string]any{"KillUnit": s.killUnit}, "/org/freedesktop/systemd1",
			"org.freedesktop.systemd1.Manager"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{logindName, "org.freedesktop.systemd1"} {
		if _, err := conn.RequestName(name, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *fakeLogind) inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locks, s.whats = append(s.locks, r), append(s.whats, what+" "+who+" "+mode)
	s.t.Cleanup(func() { r.Close(); w.Close() })
	fd := dbus.UnixFD(w.Fd())
	time.AfterFunc(time.Second, func() { w.Close() }) // the descriptor has been sent by then
	return fd, nil
}

func (s *fakeLogind) get(_, name string) (dbus.Variant, *dbus.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "PreparingForShutdown" {
		return dbus.MakeVariant(s.preparing), nil
	}
	return dbus.MakeVariant(uint64(s.delay / time.Microsecond)), nil
}

func (s *fakeLogind) killUnit(unit, _ string, signal int32) *dbus.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := os.ReadFile(filepath.Join(s.dropIns, dropIn))
	if errors.Is(err, fs.ErrNotExist) {
		s.delay, err = s.defaultDelay, nil
	}
	if err != nil || unit != "systemd-logind.service" || signal != 1 {
		return dbus.MakeFailedError(fmt.Errorf("%s %d: %w", unit, signal, err))
	}
	_, value, _ := strings.Cut(string(text), "InhibitDelayMaxSec=")
	var seconds int
	if _, err := fmt.Sscan(value, &seconds); err == nil && !s.ignoresDropIns {
		s.delay = time.Duration(seconds) * time.Second
	}
	return nil
}

// prepare emits PrepareForShutdown: a shutdown starts or is canceled.
func (s *fakeLogind) prepare(start bool) {
	s.t.Helper()
	if err := s.conn.Emit(logindPath, logindManager+"."+prepareForShutdown, start); err != nil {
		s.t.Fatal(err)
	}
}

// lock waits for the nth lock and returns it.
func (s *fakeLogind) lock(n int) *os.File {
	s.t.Helper()
	var f *os.File
	eventually(s.t, fmt.Sprintf("lock %d is taken", n), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.locks) >= n {
			f = s.locks[n-1]
		}
		return f != nil
	})
	return f
}

// released waits until the lock is released.
func released(t *testing.T, lock *os.File) {
	t.Helper()
	_ = lock.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := lock.Read(make([]byte, 1)); n != 0 || err == nil || os.IsTimeout(err) {
		t.Fatalf("lock is still held: %v", err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout waiting until %s", what)
		}
	}
}

// startWatch runs WatchShutdown until the test ends or stop is called.
func startWatch(
	t *testing.T,
	dropIns string,
	need time.Duration,
	log *slog.Logger,
	drain func(context.Context),
) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		WatchShutdown(
			ctx,
			ShutdownOptions{DelayNeeded: need, Drain: drain, OnCancel: func() {}, DropInDir: dropIns, Log: log},
		)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-stopped })
	t.Cleanup(stop)
	return stop
}

// logBuffer is a log output that can be read concurrently.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *logBuffer) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *logBuffer) has(s string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(n.text.String(), s)
}

func TestShutdownWaitsForDrain(t *testing.T) {
	startBus(t, t.TempDir())
	s := newFakeLogind(t, 5*time.Second)
	draining, finish := make(chan struct{}), make(chan struct{})
	startWatch(t, s.dropIns, 40*time.Second, slog.New(slog.DiscardHandler), func(context.Context) {
		draining <- struct{}{}
		<-finish
	})
	lock := s.lock(1)
	s.mu.Lock()
	if s.delay != 40*time.Second || s.whats[0] != "shutdown berth delay" {
		t.Errorf("inhibitor lock: got delay %s for %s", s.delay, s.whats[0])
	}
	s.mu.Unlock()
	for n := 1; n <= 2; n++ {
		s.prepare(true)
		<-draining
		_ = lock.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := lock.Read(make([]byte, 1)); !os.IsTimeout(err) {
			t.Fatalf("lock was released while pods were terminating: %v", err)
		}
		finish <- struct{}{}
		released(t, lock)
		s.prepare(false) // canceled: the next shutdown is delayed again
		lock = s.lock(n + 1)
	}
}

func TestStoppedAgentReleasesLock(t *testing.T) {
	startBus(t, t.TempDir())
	s := newFakeLogind(t, time.Hour)
	stop := startWatch(
		t,
		s.dropIns,
		time.Second,
		slog.New(slog.DiscardHandler),
		func(context.Context) { t.Error("Drain was called") },
	)
	lock := s.lock(1)
	stop()
	released(t, lock)
	if left, _ := os.ReadDir(s.dropIns); len(left) > 0 {
		t.Errorf("sufficient delay: got drop-ins %v, want none", left)
	}
}

func TestEarlierShutdownIsDetected(t *testing.T) {
	startBus(t, t.TempDir())
	s := newFakeLogind(t, time.Hour)
	s.preparing = true
	drained := make(chan struct{})
	startWatch(t, s.dropIns, time.Second, slog.New(slog.DiscardHandler), func(context.Context) { close(drained) })
	<-drained
	released(t, s.lock(1))
	if !ShutdownInProgress(t.Context()) {
		t.Error("ShutdownInProgress: got false, want true")
	}
}

func TestShortInhibitDelayIsLogged(t *testing.T) {
	startBus(t, t.TempDir())
	s := newFakeLogind(t, 5*time.Second)
	s.ignoresDropIns = true
	log := &logBuffer{}
	startWatch(t, s.dropIns, 40*time.Second, slog.New(slog.NewTextHandler(log, nil)), func(context.Context) {})
	s.lock(1)
	if !log.has("InhibitDelayMaxSec") || !log.has("allowed=5s needed=40s") {
		t.Errorf("missing warning about the inhibit delay, log: %s", log.text.String())
	}
}

// TestScenario26_BusReconnects: a shutdown after the reconnect is delayed.
func TestScenario26_BusReconnects(t *testing.T) {
	dir := t.TempDir()
	log := &logBuffer{}
	drained := make(chan struct{}, 1)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(dir, "bus"))
	startWatch(
		t,
		t.TempDir(),
		time.Second,
		slog.New(slog.NewTextHandler(log, nil)),
		func(context.Context) { drained <- struct{}{} },
	)
	eventually(t, "the missing bus is logged", func() bool { return log.has("shutdown watch unavailable") })
	for range 2 {
		stop := startBus(t, dir)
		s := newFakeLogind(t, time.Hour)
		lock := s.lock(1)
		s.prepare(true)
		<-drained
		released(t, lock)
		stop()
		if err := os.Remove(filepath.Join(dir, "bus")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// TestRemoveInhibitDelay: removing the file restores the configuration of logind, and an empty directory
// is removed. This also works without logind.
func TestRemoveInhibitDelay(t *testing.T) {
	dir := t.TempDir()
	stop := startBus(t, dir)
	s := newFakeLogind(t, 5*time.Second)
	l, err := DialLogind(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wantDelay := func(want time.Duration) {
		t.Helper()
		if d, err := l.InhibitDelayMax(t.Context()); err != nil || d != want {
			t.Errorf("inhibit delay: got %v (%v), want %v", d, err, want)
		}
	}
	wantRemoved := func(want bool) {
		t.Helper()
		if removed, err := RemoveInhibitDelay(t.Context(), s.dropIns); err != nil || removed != want {
			t.Errorf("RemoveInhibitDelay: got %v (%v), want %v", removed, err, want)
		}
	}
	wantRemoved(false)
	raiseDelay := func() {
		t.Helper()
		if _, err := l.RaiseInhibitDelay(t.Context(), s.dropIns, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	raiseDelay()
	wantDelay(time.Minute)
	wantRemoved(true)
	wantDelay(5 * time.Second)
	if _, err := os.Stat(s.dropIns); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory still exists: %v", err)
	}
	raiseDelay()
	foreign := filepath.Join(s.dropIns, "foreign.conf")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stop()
	wantRemoved(true)
	wantRemoved(false)
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("foreign drop-in: %v", err)
	}
}
