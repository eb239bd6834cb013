package crilog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// thinSooner is how much sooner than compressed a file is thinned: a flood must
// not push out what is older before that.
const thinSooner = 5

// Loss is what a limit has cost.
type Loss struct{ Lines, Bytes int64 }

// thin drops from the rotated files what is more than PerMinute bytes of one
// minute, the oldest lines first. The newest of them, which was moved just now,
// and the log itself are whole and stay so: they only count. What was dropped of
// a minute is told in one line in its place; a file of which nothing else would
// be left goes, and the line is in the next one.
//
//	old … older │ newest of old │ newest │ log
//	            └── thinned, with those before it that have lines of its first minute
//
// One that was written to a moment ago is not touched either.
func (r Rotation) thin(path string, old []rotated, newest rotated) (err error) {
	whole := []rotated{newest, {path: path}}
	for len(old) > 0 && !old[len(old)-1].quiet(r.CompressDelay/thinSooner) {
		whole = slices.Insert(whole, 0, old[len(old)-1])
		old = old[:len(old)-1]
	}
	if len(old) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("limit rotated log: %w", err)
		}
	}()
	files, t, err := r.window(old)
	if err != nil {
		return err
	}
	later, err := r.later(t.last, whole...)
	if err != nil {
		return err
	}
	t.add(later)
	if len(t.over) == 0 {
		return nil
	}
	w := &thinner{over: t.over, most: r.PerMinute}
	for _, f := range files {
		if err = w.file(f); err != nil {
			break
		}
	}
	defer w.discard()
	if err == nil {
		err = w.commit()
	}
	if err == nil && r.Dropped != nil {
		r.Dropped(w.loss)
	}
	return err
}

// window is the newest of the files with those before it that share a minute
// with the one after them, oldest first, and what they have together.
func (r Rotation) window(old []rotated) ([]rotated, *tally, error) {
	newest := &tally{most: r.PerMinute, over: map[int]int64{}}
	if err := newest.file(old[len(old)-1]); err != nil {
		return nil, nil, err
	}
	first, from := newest.first, len(old)-1
	for from > 0 && first != "" {
		before := &tally{most: r.PerMinute}
		if err := before.file(old[from-1]); err != nil {
			return nil, nil, err
		}
		if before.last != first {
			break
		}
		first = before.first
		from--
	}
	if from == len(old)-1 {
		return old[from:], newest, nil
	}
	all := &tally{most: r.PerMinute, over: map[int]int64{}}
	for _, o := range old[from:] {
		if err := all.file(o); err != nil {
			return nil, nil, err
		}
	}
	return old[from:], all, nil
}

// later is how many bytes of a minute the files begin with, one after the other,
// as far as that matters.
func (r Rotation) later(minute string, files ...rotated) (n int64, err error) {
	for _, f := range files {
		goesOn := true
		err := eachRecord(f, func(x record) error {
			if x.minute != "" && x.minute != minute || n >= r.PerMinute {
				goesOn = false
				return errEnough
			}
			n += int64(len(x.piece))
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			return 0, err
		}
		if !goesOn {
			break
		}
	}
	return n, nil
}

// errEnough ends reading.
var errEnough = errors.New("enough")

// record is a record of a log, or a piece of one that is long.
type record struct {
	piece  []byte // with the newline, if it has come
	minute string // that it was written in; empty: more of the record before, or rubble
	stamp  []byte // its time, if minute is not empty
	stderr bool
	whole  bool // it ends a line of its stream
	marker *Loss
}

const minuteLen = len("2006-01-02T15:04")

// eachRecord reads a file's records in order. Pieces are good until each returns.
func eachRecord(o rotated, each func(record) error) error {
	in, err := o.open()
	if err != nil {
		return err
	}
	defer in.Close()
	b := bufio.NewReaderSize(in, pieceMax)
	for begins := true; ; {
		piece, err := b.ReadSlice('\n')
		if len(piece) > 0 {
			x := record{piece: piece}
			if begins {
				x.head()
			}
			if err := each(x); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
		begins = err == nil
	}
}

// head reads as much of a record as is asked for here. Time is compared and not
// counted with: its text is enough.
func (x *record) head() {
	stamp, rest, ok := bytes.Cut(x.piece, []byte{' '})
	if !ok || len(stamp) <= minuteLen || len(stamp) > headMax || stamp[10] != 'T' || stamp[13] != ':' || stamp[minuteLen] != ':' {
		return
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || len(rest) == 0 {
		return
	}
	x.minute, x.stamp = string(stamp[:minuteLen]), stamp
	x.stderr = string(stream) == "stderr"
	x.whole = rest[0] == 'F'
	if x.stderr && x.whole {
		x.marker = markerOf(rest)
	}
}

const (
	markerWord = "[berth] dropped "
	markerHead = "F " + markerWord
	markerText = markerHead + "%d lines, %d bytes: more than %d bytes in this minute\n"
)

// markerOf reads what a line says that thin has written; nil: it is another.
func markerOf(rest []byte) *Loss {
	if !bytes.HasPrefix(rest, []byte(markerHead)) {
		return nil
	}
	var l Loss
	var most int64
	if n, err := fmt.Sscanf(string(rest), markerText, &l.Lines, &l.Bytes, &most); err != nil || n != 3 {
		return nil
	}
	return &l
}

// isMarker reports whether a line says what thin has dropped in its place.
func isMarker(l Line) bool {
	return l.Stderr && !l.Partial && bytes.HasPrefix(l.Text, []byte(markerWord))
}

// tally counts the bytes of the minutes of one or more files. Records of one
// minute that follow each other are a run; only those over the limit are kept.
type tally struct {
	most        int64
	over        map[int]int64 // bytes by number of the run; nil: not wanted
	first, last string        // minutes
	run         int
	bytes       int64 // of the run at hand
}

func (t *tally) file(o rotated) error {
	return eachRecord(o, func(x record) error {
		if x.minute != "" && x.minute != t.last {
			if t.first == "" {
				t.first = x.minute
			} else {
				t.run++
			}
			t.last, t.bytes = x.minute, 0
		}
		if x.marker == nil {
			t.add(int64(len(x.piece)))
		}
		return nil
	})
}

// add adds to the run at hand.
func (t *tally) add(n int64) {
	if t.bytes += n; t.over != nil && t.bytes > t.most {
		t.over[t.run] = t.bytes
	}
}

// thinner writes files anew without what is over the limit.
type thinner struct {
	over map[int]int64 // what is left of runs over the limit
	most int64

	minute  string
	run     int
	open    [2]bool   // a line of stdout, stderr goes on
	begin   [2][]byte // records of such a line that are dropped
	stream  int       // of the record at hand
	loss    Loss      // all of it
	pending Loss      // not told in a line yet
	stamp   []byte    // of what was dropped last
	drops   bool      // the record at hand is dropped
	inLine  int       // bytes since that was chosen

	done []*archive // finished; one without a file: nothing is left of it
	at   *archive
}

func (w *thinner) file(o rotated) error {
	w.at = &archive{of: o}
	w.done = append(w.done, w.at)
	return eachRecord(o, w.take)
}

func (w *thinner) take(x record) error {
	if x.minute != "" {
		if err := w.begins(x); err != nil {
			return err
		}
	}
	if x.marker != nil {
		w.pending.Lines += x.marker.Lines
		w.pending.Bytes += x.marker.Bytes
		w.stamp = append(w.stamp[:0], x.stamp...)
		return nil // it is said again
	}
	w.choose(x)
	if _, counted := w.over[w.run]; counted {
		w.over[w.run] -= int64(len(x.piece))
	}
	if !w.drops {
		if err := w.tell(); err != nil {
			return err
		}
		_, err := w.at.Write(x.piece)
		return err
	}
	w.keepBegin(x)
	n := Loss{Bytes: int64(len(x.piece))}
	if x.whole {
		n.Lines = 1
	}
	w.loss = Loss{w.loss.Lines + n.Lines, w.loss.Bytes + n.Bytes}
	w.pending = Loss{w.pending.Lines + n.Lines, w.pending.Bytes + n.Bytes}
	if x.minute != "" {
		w.stamp = append(w.stamp[:0], x.stamp...)
	}
	return nil
}

// begins takes in that another record begins, maybe in another minute.
func (w *thinner) begins(x record) error {
	if x.minute == w.minute {
		return nil
	}
	if w.minute != "" {
		w.run++
	}
	w.minute = x.minute
	return w.tell()
}

// choose says whether a record is dropped. A line stays or goes as a whole,
// unless it is very long.
func (w *thinner) choose(x record) {
	if x.minute == "" {
		return
	}
	if w.inLine += len(x.piece); !w.open[0] && !w.open[1] || w.inLine > heldMax {
		w.drops, w.inLine = w.over[w.run] > w.most, 0
	}
	if w.stream = 0; x.stderr {
		w.stream = 1
	}
	w.open[w.stream] = !x.whole
}

// keepBegin remembers the begin of a line that is dropped: the rest may be in
// the next file, which is not touched.
func (w *thinner) keepBegin(x record) {
	b := &w.begin[w.stream]
	switch {
	case x.whole || len(*b) > heldMax:
		*b = nil
	case w.open[w.stream]:
		*b = append(*b, x.piece...)
	}
}

// putBegins writes the begins of lines that go on in the next file after all.
func (w *thinner) putBegins() error {
	var all []byte
	for i, b := range w.begin {
		if w.open[i] && w.drops {
			all = append(all, b...)
		}
	}
	n := min(int64(len(all)), w.pending.Bytes)
	w.pending.Bytes -= n
	w.loss.Bytes -= n
	if err := w.tell(); err != nil || len(all) == 0 {
		return err
	}
	_, err := w.at.Write(all)
	return err
}

// tell writes what was dropped since the last line about that.
func (w *thinner) tell() error {
	if w.pending == (Loss{}) {
		return nil
	}
	l := w.pending
	w.pending = Loss{}
	_, err := fmt.Fprintf(w.at, "%s stderr "+markerText, w.stamp, l.Lines, l.Bytes, w.most)
	return err
}

// commit puts the new files in the place of the old ones, the newest first: if
// it is cut short, what was told twice was not lost.
func (w *thinner) commit() error {
	if err := w.putBegins(); err != nil {
		return err
	}
	for _, a := range w.done {
		if a.temp == nil {
			continue
		}
		if err := a.finish(); err != nil {
			return err
		}
	}
	for _, a := range slices.Backward(w.done) {
		if a.temp == nil {
			if err := remove(a.of); err != nil {
				return err
			}
			continue
		}
		if err := a.commit(); err != nil {
			return err
		}
	}
	return nil
}

func (w *thinner) discard() {
	for _, a := range w.done {
		a.discard()
	}
}
