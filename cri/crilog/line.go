package crilog

import (
	"bytes"
	"errors"
	"time"
)

// Line is a record of a log.
type Line struct {
	Time    time.Time
	Stderr  bool
	Partial bool   // the line continues in the next record of the stream
	Text    []byte // without the newline; a carriage return is part of the container's output
}

// ErrMalformed is the error for a record that does not have the CRI format.
var ErrMalformed = errors.New("malformed log record")

// maxHead is larger than the time, stream and tag of any record.
const maxHead = 96

// ParseLine parses a record without its newline. Text shares memory with b.
func ParseLine(b []byte) (Line, error) {
	stamp, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok || len(stamp) > maxHead {
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

// maxPiece bounds the buffered part of a record. A longer record is emitted in pieces, all but the
// last of them partial.
const maxPiece = 64 << 10

// splitter splits a stream of bytes into records.
type splitter struct {
	buf   []byte // the incomplete record
	head  Line   // of a record whose first pieces were emitted
	state int    // of the record that buf belongs to
}

// States of a splitter.
const (
	atStart     = iota // buf starts with the head of a record
	inRecord           // buf continues the text of the record with that head
	inMalformed        // buf continues a malformed record
)

// feed adds bytes. The lines are valid until emit returns.
func (s *splitter) feed(b []byte, emit func(Line) error) error {
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i >= 0 && len(s.buf) == 0 && i <= maxPiece {
			if err := s.emitPiece(b[:i], true, emit); err != nil {
				return err
			}
			b = b[i+1:]
			continue
		}
		n := i
		if i < 0 {
			n = len(b)
		}
		n = min(n, maxPiece-len(s.buf))
		s.buf = append(s.buf, b[:n]...)
		b = b[n:]
		complete := len(b) > 0 && b[0] == '\n'
		if complete {
			b = b[1:]
		} else if len(s.buf) < maxPiece {
			return nil
		}
		if err := s.emitPiece(s.buf, complete, emit); err != nil {
			return err
		}
		s.buf = s.buf[:0]
	}
	return nil
}

// end emits an incomplete last record as far as it goes.
func (s *splitter) end(emit func(Line) error) error {
	var err error
	if len(s.buf) > 0 {
		err = s.emitPiece(s.buf, false, emit)
	}
	s.reset()
	return err
}

func (s *splitter) reset() { s.buf, s.state = s.buf[:0], atStart }

func (s *splitter) emitPiece(b []byte, complete bool, emit func(Line) error) error {
	l, state := s.head, s.state
	switch state {
	case atStart:
		var err error
		if l, err = ParseLine(b); err != nil {
			state = inMalformed
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
	if state == inMalformed {
		return nil
	}
	return emit(l)
}
