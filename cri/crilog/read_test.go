package crilog

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// records returns records, one per second from base, each given as "stream tag text".
func records(base time.Time, lines ...string) string {
	var b strings.Builder
	for i, l := range lines {
		b.WriteString(base.Add(time.Duration(i)*time.Second).Format(time.RFC3339Nano) + " " + l + "\n")
	}
	return b.String()
}

func day(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }

// write creates a file with the modification time of its last line.
func write(t *testing.T, path, text string, mod time.Time) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, mod, mod); err != nil {
		t.Fatal(err)
	}
}

func writeZip(t *testing.T, path, text string, mod time.Time) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write([]byte(text))
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String(), mod)
}

// logs creates a log with two rotated files, the older one compressed:
// days 1, 2 and 3 with lines a0.., b0.. and c0.. .
func logs(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	writeZip(t, path+".20260101-000100.gz", records(day(1), "stdout F a0", "stderr F a1", "stdout F a2"),
		day(1).Add(2*time.Second))
	write(t, path+".20260102-000100", records(day(2), "stdout F b0", "stdout P b1", "stdout F -b1"),
		day(2).Add(2*time.Second))
	write(t, path, records(day(3), "stdout F c0", "stderr P c1", "stdout F c2", "stderr F -c1"),
		day(3).Add(3*time.Second))
	write(t, path+".note", "not a log\n", day(3))
	write(t, path+".20260102-000200.tmp", "half compressed", day(2))
	return path
}

func TestRead(t *testing.T) {
	tail := func(n int64) *int64 { return &n }
	for _, row := range []struct {
		name string
		o    Options
		want string
	}{
		{"all files, with partial lines joined", Options{}, "a0 a1 a2 b0 b1-b1 c0 c2 c1-c1"},
		{"the last line", Options{Tail: tail(1)}, "-c1"},
		{"the last lines in one file", Options{Tail: tail(3)}, "c0 c2 c1-c1"},
		{"the last lines in two files", Options{Tail: tail(4)}, "b1-b1 c0 c2 c1-c1"},
		{"the last lines in three files", Options{Tail: tail(6)}, "a2 b0 b1-b1 c0 c2 c1-c1"},
		{"more lines than exist", Options{Tail: tail(1000)}, "a0 a1 a2 b0 b1-b1 c0 c2 c1-c1"},
		{"no lines", Options{Tail: tail(0)}, ""},
		{"since a time", Options{Since: day(2).Add(time.Second)}, "b1-b1 c0 c2 c1-c1"},
		{"since a future time", Options{Since: day(9)}, ""},
		{"both since and tail", Options{Since: day(3), Tail: tail(5)}, "c0 c2 c1-c1"},
		{"a byte limit", Options{LimitBytes: 7}, "a0 a1 a"},
		{"a byte limit that is not reached", Options{LimitBytes: 7000}, "a0 a1 a2 b0 b1-b1 c0 c2 c1-c1"},
		{"one timestamp per line", Options{Timestamps: true, Tail: tail(2)},
			"2026-01-03T00:00:02.000000000Z c2 2026-01-03T00:00:01.000000000Z c1-c1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			row.o.Path, row.o.Stdout, row.o.Stderr = logs(t), &b, &b
			if err := Read(t.Context(), row.o); err != nil {
				t.Fatal(err)
			}
			got := strings.TrimSuffix(strings.ReplaceAll(b.String(), "\n", " "), " ")
			if got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestReadSeparatesStreams(t *testing.T) {
	t.Parallel()
	n := int64(2)
	var out, errs bytes.Buffer
	path := logs(t)
	if err := Read(t.Context(), Options{Path: path, Stdout: &out, Stderr: &errs}); err != nil {
		t.Fatal(err)
	}
	if out.String() != "a0\na2\nb0\nb1-b1\nc0\nc2\n" || errs.String() != "a1\nc1-c1\n" {
		t.Errorf("stdout %q, stderr %q", out.String(), errs.String())
	}
	errs.Reset()
	if err := Read(t.Context(), Options{Path: path, Stderr: &errs, Tail: &n}); err != nil ||
		errs.String() != "a1\nc1-c1\n" {
		t.Errorf("the last two lines of stderr are %q, %v", errs.String(), err)
	}
}

func TestReadSkipsMalformedRecords(t *testing.T) { // L2
	t.Parallel()
	for _, row := range []struct{ name, text, want string }{
		{"malformed records between lines", records(day(1), "stdout F a") + "\x00\x00rubble\n\n" + records(day(1),
			"stdout F b"),
			"a\nb\n"},
		{"an incomplete last record is emitted as far as it goes", records(day(1), "stdout F a") + stamp +
			" stdout F b",
			"a\nb"},
		{"an incomplete head at the end is skipped", records(day(1), "stdout F a") + "2026-01-", "a\n"},
		{"a carriage return is part of the line", records(day(1), "stdout F a\r"), "a\r\n"},
		{"an unterminated last line", records(day(1), "stdout P a"), "a"},
		{"an empty file has no lines", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			write(t, path, row.text, day(1))
			var b bytes.Buffer
			if err := Read(t.Context(), Options{Path: path, Stdout: &b}); err != nil || b.String() != row.want {
				t.Errorf("got %q, %v; want %q", b.String(), err, row.want)
			}
		})
	}
}

func TestLongJoinedLineIsNotBuffered(t *testing.T) { // L1
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	part := strings.Repeat("x", 16<<10)
	write(t, path, strings.Repeat(records(day(1), "stdout P "+part), 100)+records(day(1), "stdout F end"), day(1))
	w := &largestWrite{}
	if err := Read(t.Context(), Options{Path: path, Stdout: w, Timestamps: true}); err != nil {
		t.Fatal(err)
	}
	if want := len("2026-01-01T00:00:00.000000000Z ") + 100*len(part) + len("end\n"); w.total != want ||
		w.most > 2*maxHeldLine {
		t.Errorf("%d bytes of %d, at most %d at once", w.total, want, w.most)
	}
}

// largestWrite records the size of the largest write.
type largestWrite struct{ total, most int }

func (w *largestWrite) Write(p []byte) (int, error) {
	w.total, w.most = w.total+len(p), max(w.most, len(p))
	return len(p), nil
}

func TestReadContinuesAfterDamagedFile(t *testing.T) {
	t.Parallel()
	path := logs(t)
	write(t, path+".20260101-000100.gz", "not compressed at all", day(1))
	var b bytes.Buffer
	err := Read(t.Context(), Options{Path: path, Stdout: &b})
	if err == nil || !strings.Contains(err.Error(), "20260101-000100.gz") || b.String() != "b0\nb1-b1\nc0\nc2\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestReadMissingLog(t *testing.T) {
	t.Parallel()
	for _, path := range []string{filepath.Join(t.TempDir(), "0.log"), filepath.Join(t.TempDir(), "none", "0.log")} {
		if err := Read(t.Context(), Options{Path: path}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestReadDuringRotation(t *testing.T) {
	t.Parallel()
	path := logs(t)
	if err := os.Rename(path, path+".20260103-000100"); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	n := int64(1)
	if err := Read(t.Context(), Options{Path: path, Stdout: &b, Tail: &n}); err != nil || b.String() != "c2\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("writer closed") }

func TestReadEndsOnWriterError(t *testing.T) {
	t.Parallel()
	if err := Read(t.Context(), Options{Path: logs(t), Stdout: failing{}}); err == nil ||
		!strings.Contains(err.Error(), "writer closed") {
		t.Errorf("%v", err)
	}
}

func TestReadEndsOnCanceledContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Read(ctx, Options{Path: logs(t), Stdout: &bytes.Buffer{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestLastLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	var lines []string
	for i := range 100 {
		lines = append(lines, "stdout F line "+strconv.Itoa(i))
	}
	write(t, path, records(day(1), lines...), day(1))
	got, err := LastLines(t.Context(), path, 3, 2048)
	if err != nil || string(got) != "line 97\nline 98\nline 99\n" {
		t.Errorf("got %q, %v", got, err)
	}
	got, err = LastLines(t.Context(), path, 80, 10)
	if err != nil || string(got) != "8\nline 99\n" {
		t.Errorf("got %q, %v", got, err)
	}
}
