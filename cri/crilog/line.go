package crilog

import (
	"bytes"
	"errors"
	"time"
)

// Line is one record of a log.
type Line struct {
	Time    time.Time
	Stderr  bool
	Partial bool   // the line goes on in the next record of the stream
	Text    []byte // without the newline; a carriage return is the container's own
}

// ErrMalformed is the error of a record that is not in the format.
var ErrMalformed = errors.New("malformed log record")

// headMax is more than a record's time, stream and tag take.
const headMax = 96

// ParseLine reads one record without its newline. Text shares memory with b.
func ParseLine(b []byte) (Line, error) {
	stamp, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok || len(stamp) > headMax {
		return Line{}, ErrMalformed
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Line{}, ErrMalformed
	}
	var l Line
	switch string(stream) {
	case "stdout":
	case "stderr":
		l.Stderr = true
	default:
		return Line{}, ErrMalformed
	}
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	switch string(tag) {
	case "F":
	case "P":
		l.Partial = true
	default:
		return Line{}, ErrMalformed
	}
	t, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Line{}, ErrMalformed
	}
	l.Time, l.Text = t, text
	return l, nil
}

// pieceMax bounds what is kept of one record: a longer one is given out in
// pieces, all but the last of them partial.
const pieceMax = 64 << 10

// splitter cuts a stream of bytes into records.
type splitter struct {
	buf   []byte // of a record that is not complete
	head  Line   // of the record whose first pieces have been given out
	state int    // of the record that buf belongs to
}

// States of a splitter.
const (
	atStart  = iota // buf begins with the head of a record
	inRecord        // buf is more text of the record with that head
	inRubble        // buf is more of a record that made no sense
)

// feed takes the next bytes. The lines are good until emit returns.
func (s *splitter) feed(b []byte, emit func(Line) error) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i >= 0 && len(s.buf) == 0 && i <= pieceMax {
			if err := s.piece(b[:i], true, emit); err != nil {
				return err
			}
			b = b[i+1:]
			continue
		}
		n := i
		if i < 0 {
			n = len(b)
		}
		n = min(n, pieceMax-len(s.buf))
		s.buf = append(s.buf, b[:n]...)
		b = b[n:]
		complete := len(b) > 0 && b[0] == '\n'
		if complete {
			b = b[1:]
		} else if len(s.buf) < pieceMax {
			return nil
		}
		if err := s.piece(s.buf, complete, emit); err != nil {
			return err
		}
		s.buf = s.buf[:0]
	}
	return nil
}

// end says that no more bytes come: a torn record is given out as far as it
// goes.
func (s *splitter) end(emit func(Line) error) error {
	var err error
	if len(s.buf) > 0 {
		err = s.piece(s.buf, false, emit)
	}
	s.reset()
	return err
}

func (s *splitter) reset() { s.buf, s.state = s.buf[:0], atStart }

func (s *splitter) piece(b []byte, complete bool, emit func(Line) error) error {
	l, state := s.head, s.state
	switch state {
	case atStart:
		var err error
		if l, err = ParseLine(b); err != nil {
			state = inRubble
			break
		}
		state, s.head = inRecord, l
		s.head.Text = nil
	case inRecord:
		l.Text = b
	}
	s.state = state
	if complete {
		s.state = atStart
	} else {
		l.Partial = true
	}
	if state == inRubble {
		return nil
	}
	return emit(l)
}
