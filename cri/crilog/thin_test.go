package crilog

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// saidAt writes lines of 50 bytes each, with their end, at a time of day.
func (r *runtime) saidAt(clock, name string, from, to int) {
	r.t.Helper()
	for i := from; i <= to; i++ {
		head := "2026-01-01T" + clock + ".000000000Z stdout F "
		r.raw(head + fmt.Sprintf("%-*s", 49-len(head), fmt.Sprint(name, i)) + "\n")
	}
}

// moved is a Rotate with a limit of 200 bytes a minute.
func (r *runtime) moved(second int, dropped *Loss) {
	r.t.Helper()
	done, err := Rotate(r.path, Rotation{
		MaxSize: 1, MaxFiles: 6, PerMinute: 200, Now: day(1).Add(time.Duration(second) * time.Second), Reopen: r.reopen,
		Dropped: func(l Loss) { dropped.Lines += l.Lines; dropped.Bytes += l.Bytes },
	})
	if err != nil || !done {
		r.t.Errorf("rotated %t: %v", done, err)
	}
}

// told is what a reader gets, a word for each line.
func told(t *testing.T, path string) string {
	t.Helper()
	var b strings.Builder
	if err := Read(t.Context(), Options{Path: path, Stdout: &b, Stderr: &b}); err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(line, "[berth] dropped "); ok {
			s, _, _ = strings.Cut(s, " lines")
			line = "-" + s
		}
		out = append(out, line)
	}
	return strings.Join(out, " ")
}

func TestALimitDropsTheOldestLinesOfAMinuteFromRotatedFilesOnly(t *testing.T) { // L7
	t.Parallel()
	type step struct {
		clock    string
		name     string
		from, to int
		rotate   bool
	}
	for _, c := range []struct {
		name  string
		steps []step
		want  string
		files int // rotated
		lost  int64
	}{
		{"the log itself and the newest rotated one are whole", []step{{"10:00:01", "a", 1, 9, true}, {"10:00:02", "b", 1, 9, false}},
			"a1 a2 a3 a4 a5 a6 a7 a8 a9 b1 b2 b3 b4 b5 b6 b7 b8 b9", 1, 0},
		{"within the limit all is kept", []step{{"10:00:01", "a", 1, 4, true}, {"10:01:02", "b", 1, 4, true}, {"10:02:02", "c", 1, 4, true}},
			"a1 a2 a3 a4 b1 b2 b3 b4 c1 c2 c3 c4", 3, 0},
		{"what is over it goes, the oldest first, and is told in its place", []step{{"10:00:01", "a", 1, 9, true}, {"10:01:02", "b", 1, 9, true}},
			"-5 a6 a7 a8 a9 b1 b2 b3 b4 b5 b6 b7 b8 b9", 2, 5},
		{"each minute has its own", []step{{"10:00:01", "a", 1, 6, false}, {"10:01:01", "b", 1, 3, false}, {"10:02:01", "c", 1, 5, true}, {"10:03:02", "d", 1, 1, true}},
			"-2 a3 a4 a5 a6 b1 b2 b3 -1 c2 c3 c4 c5 d1", 2, 3},
		{"what comes later in a minute counts", []step{{"10:00:01", "a", 1, 4, true}, {"10:00:02", "b", 1, 1, true}, {"10:01:00", "c", 1, 1, false}},
			"-1 a2 a3 a4 b1 c1", 2, 1},
		{"a file of which nothing would be left goes too", []step{{"10:00:01", "a", 1, 9, true}, {"10:00:11", "b", 1, 9, true}, {"10:00:21", "c", 1, 9, true}, {"10:00:31", "d", 1, 9, true}},
			"-27 d1 d2 d3 d4 d5 d6 d7 d8 d9", 2, 27},
		{"… so that a flood does not push out what was before it", []step{{"10:00:01", "old", 1, 4, true}, {"10:01:01", "a", 1, 9, true}, {"10:01:11", "b", 1, 9, true}, {"10:01:21", "c", 1, 9, true},
			{"10:01:31", "d", 1, 9, true}, {"10:01:41", "e", 1, 9, true}, {"10:01:51", "f", 1, 9, true}, {"10:01:58", "g", 1, 9, true}, {"10:02:01", "new", 1, 2, true}},
			"old1 old2 old3 old4 -59 g6 g7 g8 g9 new1 new2", 3, 59},
		{"what was told of a minute is told with what comes to it", []step{{"10:00:01", "a", 1, 9, true}, {"10:00:11", "b", 1, 2, true}, {"10:00:21", "c", 1, 1, true}, {"10:00:31", "d", 1, 4, true}},
			"-12 d1 d2 d3 d4", 2, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRuntime(t)
			var lost Loss
			for i, s := range c.steps {
				r.saidAt(s.clock, s.name, s.from, s.to)
				if s.rotate {
					r.moved(i, &lost)
				}
			}
			if got := told(t, r.path); got != c.want {
				t.Errorf("lines\n%s, want\n%s", got, c.want)
			}
			if lost != (Loss{c.lost, 50 * c.lost}) {
				t.Errorf("lost %+v, want %d lines", lost, c.lost)
			}
			if old, err := chain(r.path); err != nil || len(old) != c.files {
				t.Errorf("%d rotated files: %s %v", len(old), names(t, r.path), err)
			}
		})
	}
}

func TestWhatALimitHasDroppedIsTold(t *testing.T) { // L7
	t.Parallel()
	r := newRuntime(t)
	r.saidAt("10:00:01", "a", 1, 9)
	r.moved(1, &Loss{})
	r.saidAt("10:00:02", "b", 1, 1)
	r.moved(2, &Loss{})
	var b strings.Builder
	if err := Read(t.Context(), Options{Path: r.path, Stderr: &b, Timestamps: true}); err != nil {
		t.Fatal(err)
	}
	if want := "2026-01-01T10:00:01.000000000Z [berth] dropped 6 lines, 300 bytes: more than 200 bytes in this minute\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
	tail := int64(3)
	var s strings.Builder
	if err := Read(t.Context(), Options{Path: r.path, Stdout: &s, Tail: &tail}); err != nil || len(strings.Fields(s.String())) != 3 {
		t.Errorf("the last three lines are %q: %v", s.String(), err)
	}
}

func TestALimitDropsNoPartOfALine(t *testing.T) { // L7
	t.Parallel()
	r := newRuntime(t)
	head := "2026-01-01T10:00:01.000000000Z stdout "
	for range 3 {
		r.raw(head + "P aaaaaaaa\n" + head + "P bbbbbbbb\n" + head + "F cccccccc\n")
	}
	r.raw("rubble\n")
	r.raw(head + "F last\n")
	r.moved(1, &Loss{})
	r.saidAt("10:01:01", "b", 1, 1)
	r.moved(2, &Loss{})
	if got, want := told(t, r.path), "-2 aaaaaaaabbbbbbbbcccccccc last b1"; got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// TestALimitThatCannotBeKeptLosesNothing is a disk on which no file can be made.
func TestALimitThatCannotBeKeptLosesNothing(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	r.saidAt("10:00:01", "a", 1, 9)
	r.moved(1, &Loss{})
	r.saidAt("10:00:02", "b", 1, 1)
	if err := os.Mkdir(r.path+".20260101-000001.gz", 0o755); err != nil { // in the way
		t.Fatal(err)
	}
	done, err := Rotate(r.path, Rotation{MaxSize: 1, MaxFiles: 6, PerMinute: 200, Now: day(2), Reopen: r.reopen})
	if err == nil || !done {
		t.Errorf("rotated %t: %v", done, err)
	}
	if got := told(t, r.path); got != "a1 a2 a3 a4 a5 a6 a7 a8 a9 b1" {
		t.Errorf("lines %q", got)
	}
}

// TestAFollowerThatIsBehindJoinsNothingOverAGap has the end of a line dropped
// whose begin it has read.
func TestAFollowerThatIsBehindJoinsNothingOverAGap(t *testing.T) {
	t.Parallel()
	r := newRuntime(t)
	r.raw(stamp + " stdout P torn\n" + stamp + " stderr F [berth] dropped 2 lines, 90 bytes: more than 50 bytes in this minute\n" + stamp + " stdout F whole\n")
	if got := content(t, r.path); got != "whole\n" {
		t.Errorf("%q", got)
	}
}

// TestALineThatGoesOnInTheNextFileKeepsItsBegin: a runtime that opens its log
// again may be in the middle of a line.
func TestALineThatGoesOnInTheNextFileKeepsItsBegin(t *testing.T) { // L7
	t.Parallel()
	r := newRuntime(t)
	at := func(clock, text string) { r.raw("2026-01-01T10:00:" + clock + ".000000000Z stdout " + text + "\n") }
	var lost Loss
	r.saidAt("10:00:01", "a", 1, 9)
	at("02", "P be")
	r.moved(1, &lost)
	at("03", "F gin")
	r.saidAt("10:00:03", "b", 1, 9)
	at("04", "P ot")
	r.moved(2, &lost)
	if got, want := told(t, r.path), "-9 begin b1 b2 b3 b4 b5 b6 b7 b8 b9 ot"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	at("05", "F her")
	r.saidAt("10:00:05", "c", 1, 9)
	r.moved(3, &lost)
	if got, want := told(t, r.path), "-19 other c1 c2 c3 c4 c5 c6 c7 c8 c9"; got != want || lost.Lines != 19 {
		t.Errorf("%q, want %q; lost %+v", got, want, lost)
	}
}

func TestALimitTouchesNothingThatWasWrittenToJustNow(t *testing.T) { // L7
	t.Parallel()
	r := newRuntime(t)
	o := Rotation{MaxSize: 1, MaxFiles: 9, PerMinute: 200, CompressDelay: 5 * time.Hour, Reopen: r.reopen}
	rotate := func(at int) {
		t.Helper()
		o.Now = day(at)
		if done, err := Rotate(r.path, o); err != nil || !done {
			t.Fatalf("rotated %t: %v", done, err)
		}
	}
	r.saidAt("10:00:01", "a", 1, 9)
	rotate(1)
	long := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(r.path+".20260101-000000", long, long); err != nil {
		t.Fatal(err)
	}
	r.saidAt("10:00:02", "b", 1, 9)
	rotate(2)
	r.saidAt("10:00:03", "c", 1, 1)
	rotate(3)
	if got, want := told(t, r.path), "-9 b1 b2 b3 b4 b5 b6 b7 b8 b9 c1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
