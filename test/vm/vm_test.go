package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/systemd"
	"berth/test/hosts"
)

// TestVM boots the machine, and with BERTH_TORTURE again with the same disk.
func TestVM(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	h, err := makeHost(ctx)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(ctx, h, size{memory: "2G", extra: "256M", timeout: 10 * time.Minute}, t.TempDir(),
		makeExtraDir(ctx, t))
	if err != nil {
		t.Fatal(err)
	}
	sets := []string{"first"}
	if os.Getenv("BERTH_TORTURE") != "" {
		sets = append(sets, "second")
	}
	for _, set := range sets {
		if t.Failed() {
			break // the second boot depends on the disk state that the first leaves
		}
		t.Run(set, func(t *testing.T) { runChecks(ctx, t, m, set) })
	}
}

// runChecks boots the machine and creates a subtest for each of its checks.
func runChecks(ctx context.Context, t *testing.T, m *machine, set string) {
	start := time.Now()
	report, bootErr := m.boot(ctx, set, func(output string) { t.Logf("boot failed: %s", withoutMarkers(output)) })
	t.Logf("boot %s took %.1fs", set, time.Since(start).Seconds())
	results, err := parseReport(report)
	for _, r := range results {
		t.Run(r.name, func(t *testing.T) {
			switch {
			case r.took == "":
				t.Errorf("did not finish:\n%s", r.output)
			case !r.ok:
				t.Errorf("failed after %s:\n%s", r.took, r.output)
			default:
				t.Logf("took %s in the machine\n%s", r.took, r.output)
			}
		})
	}
	if err := errors.Join(bootErr, err); err != nil {
		t.Error(withoutMarkers(fmt.Sprintf("%v\nconsole:\n%s", err, m.console())))
	}
}

// makeExtraDir creates a directory with the files under test for the second disk.
func makeExtraDir(ctx context.Context, t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
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
	buildChecks(ctx, t, dir)
	return dir
}

// buildChecks builds the program with the checks.
func buildChecks(ctx context.Context, t *testing.T, dir string) {
	t.Helper()
	repo, err := hosts.RepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := hosts.BuildProgram(ctx, filepath.Join(dir, "guest"),
		filepath.Join(repo, "test", "vm", "guest")); err != nil {
		t.Fatal(err)
	}
}
