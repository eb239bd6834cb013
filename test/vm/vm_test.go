package vm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/systemd"
	"berth/test/hosts"
)

// TestVM boots the machine twice: the second boot finds the disk as the reboot
// at the end of the first left it.
func TestVM(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	h, err := makeHost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(ctx, h, t.TempDir(), tested(ctx, t))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"first", "second"} {
		if t.Failed() {
			break // what comes next finds the disk as the one before left it
		}
		t.Run(word, func(t *testing.T) { checked(ctx, t, m, word) })
	}
}

// checked boots the machine and makes a subtest of each of its checks.
func checked(ctx context.Context, t *testing.T, m *machine, word string) {
	began := time.Now()
	report, bootErr := m.boot(ctx, word, func(seen string) { t.Logf("the machine died: %s", seen) })
	t.Logf("the %s boot took %.1fs", word, time.Since(began).Seconds())
	results, err := read(report)
	for _, r := range results {
		t.Run(r.name, func(t *testing.T) {
			switch {
			case r.took == "":
				t.Errorf("it never ended:\n%s", r.said)
			case !r.ok:
				t.Errorf("failed after %s:\n%s", r.took, r.said)
			default:
				t.Logf("%s in there\n%s", r.took, r.said)
			}
		})
	}
	if err := errors.Join(bootErr, err); err != nil {
		t.Errorf("%v\nconsole:\n%s", err, m.console())
	}
}

// tested makes the folder of what is tested, for the second disk.
func tested(ctx context.Context, t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	berth, err := hosts.BuildBerth(ctx, hosts.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := copyFile(filepath.Join(dir, "berth"), berth); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, systemd.UnitName), []byte(systemd.Unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := hosts.BuildProgram(ctx, filepath.Join(dir, "guest"), filepath.Join(repo, "test", "vm", "guest")); err != nil {
		t.Fatal(err)
	}
	return dir
}
