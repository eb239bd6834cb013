package checkpoint

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/plan"
)

func TestAttemptsFromLogs(t *testing.T) {
	dir := t.TempDir()
	if got := AttemptsFromLogs(filepath.Join(dir, "none"), time.Now()); got != nil {
		t.Errorf("without a directory: %v", got)
	}
	for _, f := range []string{
		"main/0.log", "main/2.log", "main/10.log.20261123-000000.gz", "main/notes.log", "main/11.txt", "main/-3.log",
		"main/99999999999.log",
		"side/0.log", "empty/x", "file",
	} {
		at := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]plan.RestartState{"main": {NextAttempt: 11}, "side": {NextAttempt: 1}}
	if d := cmp.Diff(want, AttemptsFromLogs(dir, time.Now().Add(time.Minute))); d != "" {
		t.Error(d)
	}
	if got := AttemptsFromLogs(dir, time.Now().Add(-time.Minute)); got != nil {
		t.Errorf("before the first log: %v", got)
	}
}
