package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"
)

const (
	logindName    = "org.freedesktop.login1"
	logindManager = logindName + ".Manager"
	logindPath    = dbus.ObjectPath("/org/freedesktop/login1")
)

// logind stands in for logind on a bus of the test's own: it gives locks and tells of
// a shutdown, and never carries one out.
type logind struct {
	conn      *dbus.Conn
	mu        sync.Mutex
	preparing bool
	locks     chan *os.File // our ends: reading ends when the agent has let go
}

func (l *logind) inhibit(string, string, string, string) (dbus.UnixFD, *dbus.Error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.locks <- r
	time.AfterFunc(5*time.Second, func() { w.Close() }) // it has been sent by then
	return dbus.UnixFD(w.Fd()), nil
}

func (l *logind) get(_, name string) (dbus.Variant, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "PreparingForShutdown" {
		return dbus.MakeVariant(l.preparing), nil
	}
	return dbus.MakeVariant(uint64(time.Hour / time.Microsecond)), nil
}

func (l *logind) shutDown(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	l.preparing = true
	l.mu.Unlock()
	if err := l.conn.Emit(logindPath, logindManager+".PrepareForShutdown", true); err != nil {
		t.Fatal(err)
	}
}

// withLogind starts a dbus-daemon with a stand-in for logind on it; address is for the
// agent's environment.
func withLogind(t *testing.T) (l *logind, address string) {
	t.Helper()
	dir := t.TempDir()
	address = "unix:path=" + filepath.Join(dir, "bus")
	config := filepath.Join(dir, "bus.conf")
	err := os.WriteFile(config, fmt.Appendf(nil, `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/><allow user="*"/></policy></busconfig>`, address), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it listens
		t.Fatalf("dbus-daemon: %q %v", line, err)
	}
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	l = &logind{conn: conn, locks: make(chan *os.File, 10)}
	_, named := conn.RequestName(logindName, dbus.NameFlagDoNotQueue)
	err = errors.Join(named,
		conn.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, logindPath, logindManager),
		conn.ExportMethodTable(map[string]any{"Get": l.get}, logindPath, "org.freedesktop.DBus.Properties"))
	if err != nil {
		t.Fatal(err)
	}
	return l, address
}

// lock is the agent's next lock.
func (l *logind) lock(t *testing.T) *os.File {
	t.Helper()
	select {
	case f := <-l.locks:
		t.Cleanup(func() { f.Close() })
		return f
	case <-time.After(waitBound):
		t.Fatal("the agent never asked logind to wait")
		return nil
	}
}

// TestScenario26_PodsEndByGroupsBeforeTheHostGoesDown: logind is made to wait until the
// pods have ended, the lesser ones first, each with its time; nothing new starts, and an
// agent that begins anew meanwhile brings none of them back.
func TestScenario26_PodsEndByGroupsBeforeTheHostGoesDown(t *testing.T) {
	groups := []map[string]any{{"priority": 0, "shutdownGracePeriodSeconds": 60}, {"priority": 1000, "shutdownGracePeriodSeconds": 20}}
	alone(t, nodeOptions{CNI: true, Config: map[string]any{"shutdownGracePeriodByPodPriority": groups}}, func(t *testing.T, s *Space) {
		l, address := withLogind(t)
		s.Agent.SetEnv("GORACE=halt_on_error=1 exitcode=66 atexit_sleep_ms=0", "DBUS_SYSTEM_BUS_ADDRESS="+address)
		if err := s.Agent.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		lock := l.lock(t)
		s.Pod("low", "restartPolicy: Always\ncontainers:\n"+box("c", "", "on-term 2s 7", "sleep"))
		s.Pod("deaf", "terminationGracePeriodSeconds: 3\ncontainers:\n"+box("c", "", "ignore-term", "sleep"))
		s.Pod("high", "priority: 1000\ncontainers:\n"+box("c", "", "sleep"))
		for _, name := range []string{"low", "deaf", "high"} {
			s.Running(name)
		}
		l.shutDown(t)
		terminated := func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Terminated" && p.Status.Message == "Pod was terminated in response to imminent node shutdown."
		}
		ends := map[string]*corev1.ContainerStateTerminated{}
		for name, code := range map[string]int32{"low": 7, "deaf": 137, "high": 143} {
			p := s.Wait(name, "terminated with the node", terminated)
			end := status(p, "c").State.Terminated
			if ends[name] = end; end == nil || end.ExitCode != code || status(p, "c").RestartCount != 0 {
				t.Fatalf("%s: %+v", name, status(p, "c"))
			}
			if !strings.Contains(brief(p)+fmt.Sprint(p.Status.Conditions), "DisruptionTarget") {
				t.Errorf("%s: %+v", name, p.Status.Conditions)
			}
		}
		for _, name := range []string{"low", "deaf"} {
			if ends["high"].FinishedAt.Time.Before(ends[name].FinishedAt.Time) {
				t.Errorf("high ended at %v, %s at %v", ends["high"].FinishedAt, name, ends[name].FinishedAt)
			}
		}
		_ = lock.SetReadDeadline(time.Now().Add(waitBound))
		if n, err := lock.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
			t.Errorf("the agent does not let go: %v", err)
		}
		s.Pod("late", "containers:\n"+box("c", "", "sleep"))
		s.whySays("late", "NodeShutdown", "Pod was rejected as the node is shutting down.")
		if err := errors.Join(s.Agent.Kill9(), s.Agent.Start(t.Context()), s.Agent.WaitReady(t.Context())); err != nil {
			t.Fatal(err)
		}
		lock = l.lock(t)
		_ = lock.SetReadDeadline(time.Now().Add(waitBound))
		if n, err := lock.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
			t.Errorf("the new agent does not let go: %v", err)
		}
		if p := s.Wait("late", "known", func(p *corev1.Pod) bool { return p.Status.Phase != "" }); status(p, "c").ContainerID != "" {
			t.Errorf("late was started: %+v", status(p, "c"))
		}
		for _, name := range []string{"low", "deaf", "high"} {
			if p := s.Wait(name, "terminated with the node", terminated); status(p, "c").RestartCount != 0 {
				t.Errorf("%s began again: %+v", name, status(p, "c"))
			}
		}
	})
}
