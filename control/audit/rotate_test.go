package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// logFiles returns the sizes of all files of a directory by name.
func logFiles(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = info.Size()
	}
	return out
}

// TestRotatingFileIsBounded writes more than the files may hold. After each event their total size is
// within the limit, and the newest events are kept.
func TestRotatingFileIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	clock := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) // stands still
	r, err := openRotatingFile(LogOptions{MaxSize: 1, MaxBackups: 3}, filepath.Join(dir, "audit.log"),
		func() time.Time { return clock })
	if err != nil {
		t.Fatal(err)
	}
	event := []byte(strings.Repeat("x", 300<<10) + "\n")
	for range 20 {
		if _, err := r.Write(event); err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for _, size := range logFiles(t, dir) {
			total += size
		}
		if total > 4<<20 {
			t.Fatalf("files have %d bytes: %v", total, logFiles(t, dir))
		}
	}
	if files := logFiles(t, dir); len(files) != 4 || files["audit.log"] != 2*int64(len(event)) {
		t.Errorf("got files %v", files)
	}
	if _, err := r.Write(make([]byte, 2<<20)); err == nil {
		t.Error("an event larger than a file was written")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRotatingFileContinues opens a file that exists, and removes files beyond the limits of another
// configuration. It keeps files that are not its own.
func TestRotatingFileContinues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"audit.log": "first\n", "audit-2026-05-01T10-00-00.000.log": "older\n",
		"audit-2026-05-01T11-00-00.000.log": "old\n", "audit-2026-03-01T11-00-00.000.log": "oldest\n",
		"audit-notes.log": "notes\n", "other.log": "other\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now := func() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }
	o := LogOptions{MaxSize: 1, MaxBackups: 2, MaxAge: 30}
	r, err := openRotatingFile(o, filepath.Join(dir, "audit.log"), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Write([]byte("second\n")); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "audit.log"))
	if err != nil || string(text) != "first\nsecond\n" {
		t.Errorf("got %q, %v", text, err)
	}
	files := logFiles(t, dir)
	if _, kept := files["audit-2026-03-01T11-00-00.000.log"]; kept || len(files) != 5 {
		t.Errorf("got files %v", files)
	}
	if r, err = openRotatingFile(LogOptions{MaxSize: 1, MaxBackups: 1}, filepath.Join(dir, "audit.log"),
		now); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	files = logFiles(t, dir)
	if _, kept := files["audit-2026-05-01T10-00-00.000.log"]; kept || len(files) != 4 {
		t.Errorf("with a limit of one rotated file: got files %v", files)
	}
}

// TestRotatingFileKeepsSpaceFree writes on an almost full file system: events are lost until there is space.
func TestRotatingFileKeepsSpaceFree(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	r, err := openRotatingFile(LogOptions{MaxSize: 1, MaxBackups: 1}, path, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	free := int64(minFreeBytes)
	r.free = func(*os.File) (int64, error) { return free, nil }
	for _, c := range []struct {
		event   string
		free    int64
		written bool
	}{
		{"first\n", minFreeBytes, true}, {"second\n", minFreeBytes - 1, false}, {"third\n", minFreeBytes, true},
	} {
		free = c.free
		if _, err := r.Write([]byte(c.event)); (err == nil) != c.written {
			t.Errorf("%q with %d bytes free: %v", c.event, c.free, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "first\nthird\n" {
		t.Errorf("got %q, %v", text, err)
	}
}
