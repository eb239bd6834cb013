package nspawn

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/hosts"
)

func startHost(t *testing.T) *Host {
	t.Helper()
	h, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
		if left := h.Leaks(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return h
}

// TestWritesSurvivePowerLossAndReboot boots one host three times.
func TestWritesSurvivePowerLossAndReboot(t *testing.T) {
	t.Parallel()
	h := startHost(t)
	readKept := func() string {
		t.Helper()
		out, err := h.Run(t.Context(), "cat", "/proc/sys/kernel/hostname", "/etc/kept")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if _, err := h.Run(t.Context(), "sh", "-c", "echo kept >/etc/kept"); err != nil {
		t.Fatal(err)
	}
	if err := h.PowerLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Run(t.Context(), "true"); err == nil {
		t.Error("Run succeeded on a host that is off")
	}
	if err := h.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readKept(); got != h.Name+"\nkept\n" {
		t.Errorf("after a power loss: got %q, want hostname and kept file", got)
	}
	if err := h.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readKept(); got != h.Name+"\nkept\n" {
		t.Errorf("after a reboot: got %q, want hostname and kept file", got)
	}
	out, err := h.Run(t.Context(), "journalctl", "--list-boots", "--no-pager", "-q")
	if err != nil || strings.Count(out, "\n") < 2 {
		t.Errorf("journalctl --list-boots: got %q, %v; want at least 2 boots", out, err)
	}
}

func TestFailedBootReportsReason(t *testing.T) {
	t.Parallel()
	h := startHost(t)
	if err := h.PowerLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
	const unit = "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"
	if err := h.WriteFile("/etc/systemd/system/bad.service", unit); err != nil {
		t.Fatal(err)
	}
	wants := h.Root + "/etc/systemd/system/multi-user.target.wants"
	if err := os.Symlink("../bad.service", wants+"/bad.service"); err != nil {
		t.Fatal(err)
	}
	if err := h.Boot(t.Context()); err == nil || !strings.Contains(err.Error(), "bad.service") {
		t.Errorf("Boot: %v, want an error that names bad.service", err)
	}
}

// TestHostOfDeadOwnerIsRemoved runs itself as a second process, which starts a host and
// kills itself.
func TestHostOfDeadOwnerIsRemoved(t *testing.T) {
	if os.Getenv("BERTH_NSPAWN_OWNER") != "" {
		h, err := Start(context.Background(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		text := h.Name + " " + h.Dir + " " + h.Cgroup
		if err := os.WriteFile(os.Getenv("BERTH_NSPAWN_OWNER"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	t.Parallel()
	ownerFile := t.TempDir() + "/host"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // includes the build of the base
	defer cancel()
	owner := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	owner.Env = append(os.Environ(), "BERTH_NSPAWN_OWNER="+ownerFile)
	out, _ := owner.CombinedOutput() // it kills itself
	text, err := os.ReadFile(ownerFile)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f := strings.Fields(string(text))
	err = hosts.WaitFor(ctx, "the host of the dead owner to be removed", func() (bool, error) {
		if err := Sweep(); err != nil { // a parallel Start may remove it first
			return false, err
		}
		for _, path := range []string{"/run/netns/" + f[0], f[1], f[2]} {
			if _, err := os.Lstat(path); err == nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}
