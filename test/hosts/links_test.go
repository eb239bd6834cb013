package hosts

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLinksBelowMatchesWholeDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, to := range map[string]string{"own": "/tmp/host-1/logs/a", "other": "/tmp/host-10/logs/a",
		"elsewhere": "/var/log/pods/a"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := linksBelow(dir, "/tmp/host-1"); !slices.Equal(got, []string{filepath.Join(dir, "own")}) {
		t.Errorf("linksBelow: got %v, want only own", got)
	}
}
