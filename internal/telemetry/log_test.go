package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestVerbosityLevels(t *testing.T) {
	for v, want := range map[int]slog.Level{0: slog.LevelInfo, 2: slog.LevelInfo, 3: slog.LevelInfo, 4: slog.LevelDebug,
		5: slog.LevelDebug, 6: LevelTrace, 10: LevelTrace} {
		if got := Level(v); got != want {
			t.Errorf("--v=%d: level %s, want %s", v, got, want)
		}
	}
}

func TestJSONLines(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLog(LogOptions{Out: &out, Format: "json", Verbosity: 6})
	if err != nil {
		t.Fatal(err)
	}
	log.Log(t.Context(), LevelTrace, "call", "pod", "a")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	if line["level"] != "TRACE" || line["pod"] != "a" || line["time"] == nil {
		t.Errorf("got %s", out.String())
	}
}

func TestUnknownFormat(t *testing.T) {
	if _, err := NewLog(LogOptions{Format: "xml"}); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("got %v", err)
	}
}

// journalFile creates a file that JOURNAL_STREAM identifies, as systemd does.
func journalFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
	return f
}

func TestJournalStreamDetection(t *testing.T) {
	journalFile(t)
	var out bytes.Buffer
	log, err := NewLog(LogOptions{Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello")
	if s := out.String(); !strings.HasPrefix(s, "time=") || !strings.Contains(s, "level=INFO msg=hello") {
		t.Errorf("got %q", s)
	}
	if !log.Enabled(context.Background(), slog.LevelInfo) || log.Enabled(context.Background(), slog.LevelDebug) {
		t.Error("wrong level")
	}
}
