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

func started(t *testing.T) *Host {
	t.Helper()
	h, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
		if left := h.Leftovers(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	return h
}

// TestN4WritesSurvivePowerLossAndReboot goes through the life of a
// host once: each boot takes a second or two.
func TestN4WritesSurvivePowerLossAndReboot(t *testing.T) {
	t.Parallel()
	h := started(t)
	boots := func() string {
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
		t.Error("a host without power runs programs")
	}
	if err := h.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := boots(); got != h.Name+"\nkept\n" {
		t.Errorf("after a power loss: %q", got)
	}
	if err := h.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := boots(); got != h.Name+"\nkept\n" {
		t.Errorf("after a reboot: %q", got)
	}
	out, err := h.Run(t.Context(), "journalctl", "--list-boots", "--no-pager", "-q")
	if err != nil || strings.Count(out, "\n") < 2 {
		t.Errorf("the journal knows of these boots: %s %v", out, err)
	}
}

func TestFailedBootReportsReason(t *testing.T) {
	t.Parallel()
	h := started(t)
	if err := h.PowerLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile("/etc/systemd/system/bad.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n[Install]\nWantedBy=multi-user.target\n"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../bad.service", h.Root+"/etc/systemd/system/multi-user.target.wants/bad.service"); err != nil {
		t.Fatal(err)
	}
	if err := h.Boot(t.Context()); err == nil || !strings.Contains(err.Error(), "bad.service") {
		t.Errorf("Boot: %v, want an error that names bad.service", err)
	}
}

// TestN3LeftoversOfDeadOwnerAreRemoved kills a process that has a host.
func TestN3LeftoversOfDeadOwnerAreRemoved(t *testing.T) {
	if os.Getenv("BERTH_NSPAWN_OWNER") != "" {
		h, err := Start(context.Background(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(os.Getenv("BERTH_NSPAWN_OWNER"), []byte(h.Name+" "+h.Dir+" "+h.Cgroup), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	t.Parallel()
	said := t.TempDir() + "/host"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // it may have to make the base
	defer cancel()
	owner := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	owner.Env = append(os.Environ(), "BERTH_NSPAWN_OWNER="+said)
	out, _ := owner.CombinedOutput() // it kills itself
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f := strings.Fields(string(text))
	err = hosts.WaitFor(ctx, "the host of a dead owner to be taken away", func() (bool, error) {
		if err := Sweep(); err != nil { // or another test's Start, which is at it now
			return false, err
		}
		for _, what := range []string{"/run/netns/" + f[0], f[1], f[2]} {
			if _, err := os.Lstat(what); err == nil {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		t.Error(err)
	}
}
