package crilog

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

const stamp = "2026-01-02T15:04:05.000000001Z"

func TestPaths(t *testing.T) {
	for _, row := range []struct{ name, got, want string }{
		{"file name of an attempt", LogFileName(3), "3.log"},
		{"link for log shippers", LinkPath("/var/log/containers", "web", "shop", "app", "id"),
			"/var/log/containers/web_shop_app-id.log"},
		{"a long link is truncated to the maximum file name", LinkPath("/l", strings.Repeat("p", 300), "n", "c", "id"),
			"/l/" + strings.Repeat("p", 251) + ".log"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.got != row.want {
				t.Errorf("got %q, want %q", row.got, row.want)
			}
		})
	}
}

func TestParseAttempt(t *testing.T) {
	for _, row := range []struct {
		name, file string
		want       uint32
		ok         bool
	}{
		{"a log", "/d/7.log", 7, true},
		{"a rotated log", "7.log.20260102-150405.gz", 7, true},
		{"another file", "7.txt", 0, false},
		{"a number with a sign", "+7.log", 0, false},
		{"a number with leading zeros", "007.log", 0, false},
		{"a number with more than 32 bits", "4294967296.log", 4294967295, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, ok := ParseAttempt(row.file)
			if ok != row.ok || (ok && got != row.want) {
				t.Errorf("got %d, %t", got, ok)
			}
		})
	}
}

func TestParseLine(t *testing.T) {
	for _, row := range []struct {
		name, record string
		want         string // stream tag text; empty: malformed
	}{
		{"a full line", stamp + " stdout F hello", "stdout F hello"},
		{"a partial line", stamp + " stderr P hello", "stderr P hello"},
		{"more tags are skipped", stamp + " stdout F:x:y hello", "stdout F hello"},
		{"spaces are part of the text", stamp + " stdout F  a b ", "stdout F  a b "},
		{"a carriage return is part of the text", stamp + " stdout F a\r", "stdout F a\r"},
		{"binary text is accepted", stamp + " stdout F \x00\xff", "stdout F \x00\xff"},
		{"an empty text is an empty line", stamp + " stdout F ", "stdout F "},
		{"a time with an offset", "2026-01-02T15:04:05+01:00 stdout F x", "stdout F x"},
		{"an empty record is malformed", "", ""},
		{"an unknown stream is malformed", stamp + " stdin F x", ""},
		{"an unknown tag is malformed", stamp + " stdout X x", ""},
		{"an incomplete head is malformed", stamp + " std", ""},
		{"an invalid time is malformed", "yesterday stdout F x", ""},
		{"JSON is malformed", `{"log":"x","stream":"stdout"}`, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			l, err := ParseLine([]byte(row.record))
			if (err != nil) != (row.want == "") {
				t.Fatalf("error %v", err)
			}
			if got := show(l); err == nil && got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// show returns a line as its record without the time.
func show(l Line) string {
	stream, tag := "stdout", "F"
	if l.Stderr {
		stream = "stderr"
	}
	if l.Partial {
		tag = "P"
	}
	return stream + " " + tag + " " + string(l.Text)
}

// cut splits text, in pieces of n bytes, into lines.
func cut(text []byte, n int) []string {
	var out []string
	emit := func(l Line) error {
		out = append(out, show(l))
		return nil
	}
	var s splitter
	for b := range slices.Chunk(text, max(n, 1)) {
		_ = s.feed(b, emit) // emit has no errors
	}
	_ = s.end(emit)
	return out
}

func TestHugeRecordsAreSplit(t *testing.T) { // L1
	const size = 5*maxPiece + 17
	text := []byte(stamp + " stdout F " + strings.Repeat("x", size) + "\n" +
		"rubble " + strings.Repeat("y", size) + "\n" + stamp + " stdout F after\n")
	total, last := 0, ""
	var s splitter
	for b := range slices.Chunk(text, 1000) {
		if err := s.feed(b, func(l Line) error {
			if len(l.Text) > maxPiece {
				t.Fatalf("got a piece of %d bytes", len(l.Text))
			}
			total += len(l.Text)
			last = show(l)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if total != size+len("after") || last != "stdout F after" || cap(s.buf) > 2*maxPiece {
		t.Errorf("%d bytes, last %q, %d bytes held", total, last, cap(s.buf))
	}
}

// FuzzParseLine checks that a parsed line can be formatted and parsed again.
func FuzzParseLine(f *testing.F) {
	f.Add([]byte(stamp + " stdout F hello"))
	f.Add([]byte(stamp + " stderr P:x \r\x00"))
	f.Add([]byte("  "))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLine(b)
		if err != nil {
			return
		}
		again, err := ParseLine([]byte(l.Time.Format(stampFormat) + " " + show(l)))
		if err != nil || show(again) != show(l) || !again.Time.Equal(l.Time) {
			t.Fatalf("%q was parsed again as %q, %v", show(l), show(again), err)
		}
	})
}

// FuzzSplitter checks that the result does not depend on the size of the pieces, and
// that every line is part of the input.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte(stamp+" stdout F a\nrubble\n\n"+stamp+" stderr P torn"), 3)
	f.Add(bytes.Repeat([]byte("x"), 3*maxPiece), 4096)
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		whole, pieces := cut(text, len(text)), cut(text, n)
		if !slices.Equal(whole, pieces) {
			t.Fatalf("in one piece: %q, in several: %q", whole, pieces)
		}
		for _, l := range whole {
			if !bytes.Contains(text, []byte(l[len("stdout F "):])) {
				t.Fatalf("%q is not part of the input", l)
			}
		}
	})
}

// FuzzTail checks that reading backwards, forwards and naively gives the same result.
func FuzzTail(f *testing.F) {
	f.Add([]byte(stamp+" stdout F a\n"+stamp+" stdout P b\n"+stamp+" stdout F c\n"), uint8(1))
	f.Add([]byte("x\n\n"+stamp+" stderr P torn"), uint8(2))
	long := stamp + " stdout F " + strings.Repeat("z", blockSize-20) + "\n"
	f.Add([]byte(long+long+stamp+" stdout F end\n"), uint8(2))
	f.Fuzz(func(t *testing.T, text []byte, n uint8) {
		wants := func(l Line) bool { return !l.Stderr }
		offset, found, err := tailOf(bytes.NewReader(text), int64(len(text)), int64(n), wants)
		if err != nil {
			t.Fatal(err)
		}
		offset2, found2, err := tailOfStream(bytes.NewReader(text), int64(n), wants)
		if err != nil {
			t.Fatal(err)
		}
		lines := logical(text)
		if want := int64(min(len(lines), int(n))); found != want || found2 != want {
			t.Fatalf("offsets: got %d backwards, %d forwards, want %d (%d lines)", found, found2, want, len(lines))
		}
		for _, o := range []int64{offset, offset2} {
			if got := logical(text[o:]); int64(len(got)) != found {
				t.Fatalf("from offset %d: got %d lines, want %d", o, len(got), found)
			}
		}
	})
}

// logical returns the joined lines of stdout.
func logical(text []byte) []string {
	var out []string
	open := false
	for record := range bytes.SplitSeq(text, []byte{'\n'}) {
		l, err := ParseLine(record)
		if err != nil || l.Stderr {
			continue
		}
		if !open {
			out = append(out, "")
		}
		out[len(out)-1] += string(l.Text)
		open = l.Partial
	}
	return out
}

// counting counts the bytes read.
type counting struct {
	io.ReaderAt
	bytes int
}

func (c *counting) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(b, at)
	c.bytes += n
	return n, err
}

func TestTailReadsOnlyTheEnd(t *testing.T) { // L1
	var b bytes.Buffer
	for i := range 200_000 {
		fmt.Fprintf(&b, "%s stdout F line %d\n", stamp, i)
	}
	in := &counting{ReaderAt: bytes.NewReader(b.Bytes())}
	offset, found, err := tailOf(in, int64(b.Len()), 10, func(Line) bool { return true })
	if err != nil || found != 10 || in.bytes > 2*blockSize {
		t.Fatalf("found %d, read %d bytes of %d: %v", found, in.bytes, b.Len(), err)
	}
	if got := logical(b.Bytes()[offset:]); len(got) != 10 || got[0] != "line 199990" {
		t.Errorf("got %q", got)
	}
}
