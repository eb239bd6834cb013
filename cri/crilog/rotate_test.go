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

// names lists the files of a folder.
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

func TestRotateKeepsSoManyFiles(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	for i, l := range []string{"a", "b", "c", "d"} {
		r.say(l)
		done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(i + 1), Reopen: r.reopen})
		if err != nil || !done {
			t.Fatalf("rotated %t: %v", done, err)
		}
	}
	r.say("e")
	if got, want := names(t, r.path), " .20260103-000000.gz .20260104-000000"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
	if got := content(t, r.path); got != "c\nd\ne\n" {
		t.Errorf("lines %q", got)
	}
}

func TestRotateLeavesASmallLogAlone(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	r.say("a")
	write(t, r.path+".20260101-000000.tmp", "half", day(1))
	done, err := Rotate(r.path, Rotation{MaxSize: 1 << 20, MaxFiles: 3, Now: day(1), Reopen: r.reopen})
	if err != nil || done || names(t, r.path) != "" {
		t.Errorf("rotated %t, files %q: %v", done, names(t, r.path), err)
	}
}

func TestRotateMovesBackWhatTheRuntimeDoesNotOpen(t *testing.T) { // L5
	t.Parallel()
	r := newRuntime(t)
	r.say("a")
	_, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(1), Reopen: func() error { return errors.New("no") }})
	if err == nil || names(t, r.path) != "" {
		t.Errorf("files %q: %v", names(t, r.path), err)
	}
	r.say("b")
	if got := content(t, r.path); got != "a\nb\n" {
		t.Errorf("lines %q", got)
	}
}

func TestRotateKeepsBothFilesIfTheRuntimeOpensOneAndFails(t *testing.T) { // L5
	t.Parallel()
	r := newRuntime(t)
	r.say("a")
	_, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(1), Reopen: func() error { return errors.Join(r.reopen(), errors.New("late")) }})
	r.say("b")
	if err == nil || content(t, r.path) != "a\nb\n" {
		t.Errorf("files %q, lines %q: %v", names(t, r.path), content(t, r.path), err)
	}
}

func TestRotateTwiceInASecondWaits(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	r.say("a")
	r.rotate(5)
	r.say("b")
	for _, second := range []int{5, 4} {
		done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 9, Now: day(1).Add(time.Duration(second) * time.Second), Reopen: r.reopen})
		if err != nil || done {
			t.Errorf("second %d: rotated %t: %v", second, done, err)
		}
	}
	if got := content(t, r.path); got != "a\nb\n" {
		t.Errorf("lines %q", got)
	}
}

func TestRotateOpensWhatACutShortRotationLeftMissing(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	r.say("a")
	if err := os.Rename(r.path, r.path+".20260101-000000"); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 3, Now: day(2), Reopen: r.reopen}); err != nil {
		t.Fatal(err)
	}
	r.say("b")
	if got := content(t, r.path); got != "a\nb\n" {
		t.Errorf("lines %q", got)
	}
}
