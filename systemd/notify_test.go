package systemd

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// manager is the service manager's end of the notification socket.
func manager(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

func received(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestNotifySendsAllStatesInOneMessage(t *testing.T) {
	conn := manager(t, filepath.Join(t.TempDir(), "notify"))
	if err := Notify(Ready, Status("3 pods")); err != nil {
		t.Fatal(err)
	}
	if got, want := received(t, conn), "READY=1\nSTATUS=3 pods"; got != want {
		t.Errorf("service manager received %q, want %q", got, want)
	}
}

func TestNotifyAbstractSocket(t *testing.T) {
	conn := manager(t, "@berth-notify-"+filepath.Base(t.TempDir())+"-"+t.Name())
	if err := Notify(Stopping); err != nil {
		t.Fatal(err)
	}
	if got := received(t, conn); got != "STOPPING=1" {
		t.Errorf("service manager received %q", got)
	}
}

func TestClaimedSocketIsUsedByNotifierOnly(t *testing.T) {
	conn := manager(t, filepath.Join(t.TempDir(), "notify"))
	m, err := ClaimNotifySocket()
	if err != nil {
		t.Fatal(err)
	}
	if err := Notify(Ready); err != nil { // a premature notification of a library
		t.Fatal(err)
	}
	if err := m.Notify(Status("opens its store")); err != nil {
		t.Fatal(err)
	}
	if got := received(t, conn); got != "STATUS=opens its store" {
		t.Errorf("service manager received %q", got)
	}
}

func TestNotifyErrorNamesSocket(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "gone")
	t.Setenv("NOTIFY_SOCKET", missing)
	if err := Notify(Ready); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("Notify: got %v, want an error with %s", err, missing)
	}
}

func TestNoEffectWithoutServiceManager(t *testing.T) { // S1
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		t.Setenv(name, "") // registers the old value to be restored
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := Notify(Ready, WatchdogPing); err != nil {
		t.Errorf("Notify: %v", err)
	}
	w, err := WatchdogFromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	w.Run(t.Context(), func() (bool, string) {
		t.Error("a disabled watchdog checked the health")
		return true, ""
	})
}

func TestStatusTextSetsNothingElse(t *testing.T) { // S3
	got := string(Status("line one\nREADY=1\r\x00WATCHDOG=1"))
	if want := "STATUS=line one READY=1  WATCHDOG=1"; got != want {
		t.Errorf("Status = %q, want %q", got, want)
	}
}
