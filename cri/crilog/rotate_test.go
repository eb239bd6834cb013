package crilog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// names lists the files in a directory.
func names(t *testing.T, path string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimPrefix(e.Name(), "0.log"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func content(t *testing.T, path string) string {
	t.Helper()
	var b bytes.Buffer
	if err := Read(t.Context(), Options{Path: path, Stdout: &b}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestRotateKeepsMaxFiles(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	for i, l := range []string{"a", "b", "c", "d"} {
		r.writeLines(l)
		done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(i + 1), Reopen: r.reopen})
		if err != nil || !done {
			t.Fatalf("rotated %t: %v", done, err)
		}
	}
	r.writeLines("e")
	if got, want := names(t, r.path), " .20260103-000000.gz .20260104-000000"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
	if got := content(t, r.path); got != "c\nd\ne\n" {
		t.Errorf("lines %q", got)
	}
}

func TestRotateIgnoresSmallLog(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	write(t, r.path+".20260101-000000.tmp", "half", day(1))
	done, err := Rotate(r.path, Rotation{MaxSize: 1 << 20, MaxFiles: 3, Now: day(1), Reopen: r.reopen})
	if err != nil || done || names(t, r.path) != "" {
		t.Errorf("rotated %t, files %q: %v", done, names(t, r.path), err)
	}
}

func TestRotateRenamesBackWhenReopenFails(t *testing.T) { // L5
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	_, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(1),
		Reopen: func() error { return errors.New("no") }})
	if err == nil || names(t, r.path) != "" {
		t.Errorf("files %q: %v", names(t, r.path), err)
	}
	r.writeLines("b")
	if got := content(t, r.path); got != "a\nb\n" {
		t.Errorf("lines %q", got)
	}
}

func TestRotateKeepsBothFilesWhenReopenFailsLate(t *testing.T) { // L5
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	_, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(1),
		Reopen: func() error { return errors.Join(r.reopen(), errors.New("late")) }})
	r.writeLines("b")
	if err == nil || content(t, r.path) != "a\nb\n" {
		t.Errorf("files %q, lines %q: %v", names(t, r.path), content(t, r.path), err)
	}
}

func TestRotateTwicePerSecondKeepsOrder(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	r.rotate(5)
	for i, second := range []int{5, 5, 4} { // the last time: the clock was set back
		r.writeLines(string(rune('b' + i)))
		done, err := Rotate(r.path,
			Rotation{MaxSize: 1, MaxFiles: 9, Now: day(1).Add(time.Duration(second) * time.Second),
				Reopen: r.reopen})
		if err != nil || !done {
			t.Errorf("second %d: rotated %t: %v", second, done, err)
		}
	}
	if got, want := names(t,
		r.path), " .20260101-000005.gz .20260101-000006.gz .20260101-000007.gz .20260101-000008"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
	if got := content(t, r.path); got != "a\nb\nc\nd\n" {
		t.Errorf("lines %q", got)
	}
}

// TestRotateSucceedsWhenCompressionFails emulates a disk on which no file
// can be created, when rotation matters most.
func TestRotateSucceedsWhenCompressionFails(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	r.rotate(1)
	if err := os.Mkdir(r.path+".20260101-000001.gz", 0o755); err != nil { // blocks the compressed file
		t.Fatal(err)
	}
	r.writeLines("b")
	done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 9, Now: day(2), Reopen: r.reopen})
	if err == nil || !done {
		t.Errorf("rotated %t: %v", done, err)
	}
	if got := content(t, r.path); got != "a\nb\n" {
		t.Errorf("lines %q", got)
	}
}

// TestRotateHasPriorityOverCompression lets the log reach its maximum
// size again while older files are compressed.
func TestRotateHasPriorityOverCompression(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	r.rotate(1)
	r.writeLines("b")
	flood := func() error {
		err := r.reopen()
		r.writeLines("c")
		return err
	}
	if done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 9, Now: day(2), Reopen: flood}); err != nil || !done {
		t.Errorf("rotated %t: %v", done, err)
	}
	if got, want := names(t, r.path), " .20260101-000001 .20260102-000000"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
	if done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 9, Now: day(3), Reopen: r.reopen}); err != nil ||
		!done {
		t.Errorf("rotated %t: %v", done, err)
	}
	if got, want := names(t, r.path), " .20260101-000001.gz .20260102-000000.gz .20260103-000000"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
}

func TestRotateReopensAfterInterruptedRotation(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	r.writeLines("a")
	if err := os.Rename(r.path, r.path+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(2), Reopen: r.reopen}); err != nil {
		t.Fatal(err)
	}
	r.writeLines("b")
	if got := content(t, r.path); got != "a\nb\n" {
		t.Errorf("lines %q", got)
	}
}

func TestCompressionIsDelayed(t *testing.T) { // L5
	t.Parallel()
	r := newFakeRuntime(t)
	o := Rotation{MaxSize: 1, MaxFiles: 9, CompressDelay: time.Hour, Now: day(1), Reopen: r.reopen}
	for i, l := range []string{"a", "b"} {
		r.writeLines(l)
		o.Now = day(i + 1)
		if done, err := Rotate(r.path, o); err != nil || !done {
			t.Fatalf("rotated %t: %v", done, err)
		}
	}
	if got, want := names(t, r.path), " .20260101-000000 .20260102-000000"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(r.path+".20260101-000000", long, long); err != nil {
		t.Fatal(err)
	}
	if done, err := Rotate(r.path, o); err != nil || done {
		t.Fatalf("rotated %t: %v", done, err)
	}
	if got, want := names(t, r.path), " .20260101-000000.gz .20260102-000000"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
}

func TestRemoveRotatedKeepsCurrentLog(t *testing.T) {
	t.Parallel()
	r := newFakeRuntime(t)
	for i, l := range []string{"a", "b", "c"} {
		r.writeLines(l)
		if done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 9, Now: day(i + 1),
			Reopen: r.reopen}); err != nil ||
			!done {
			t.Fatalf("rotated %t: %v", done, err)
		}
	}
	r.writeLines("d")
	if err := RemoveRotated(r.path); err != nil || names(t, r.path) != "" || content(t, r.path) != "d\n" {
		t.Errorf("%v, files %q", err, names(t, r.path))
	}
	if err := RemoveRotated(filepath.Join(t.TempDir(), "gone", "0.log")); err != nil {
		t.Error(err)
	}
}
