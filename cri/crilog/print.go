package crilog

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// stampFormat has a fixed width, so that lines are aligned.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// maxHeldLine bounds how much of a joined line is buffered until its end.
const maxHeldLine = 256 << 10

// errLimitReached means that LimitBytes have been written.
var errLimitReached = errors.New("limit reached")

// printer writes records as the lines that the container wrote.
type printer struct {
	streams   [2]stream // stdout, stderr
	since     time.Time
	stamps    bool
	limited   bool
	remaining int64 // bytes, if limited
}

// stream assembles the current line of a stream. The line is written when it is complete, so that
// two streams with the same writer do not mix.
type stream struct {
	out     io.Writer // nil: not requested
	buf     []byte
	joining bool // inside a line
	written bool // part of that line has been written
	skipped bool // the line is older than requested
}

func newPrinter(o Options) *printer {
	return &printer{
		streams: [2]stream{{out: o.Stdout}, {out: o.Stderr}},
		since:   o.Since, stamps: o.Timestamps,
		limited: o.LimitBytes > 0, remaining: o.LimitBytes,
	}
}

func (p *printer) of(l Line) *stream {
	if l.Stderr {
		return &p.streams[1]
	}
	return &p.streams[0]
}

// wants reports whether the record's stream is requested.
func (p *printer) wants(l Line) bool { return p.of(l).out != nil }

func (p *printer) print(l Line) error {
	s := p.of(l)
	if s.out == nil {
		return nil
	}
	if !s.joining {
		s.skipped = l.Time.Before(p.since)
		if p.stamps && !s.skipped {
			s.buf = append(l.Time.AppendFormat(s.buf, stampFormat), ' ')
		}
	}
	s.written = s.written && s.joining
	s.joining = l.Partial
	if s.skipped {
		return nil
	}
	s.buf = append(s.buf, l.Text...)
	if !l.Partial {
		s.buf = append(s.buf, '\n')
	} else if len(s.buf) < maxHeldLine {
		return nil
	}
	return p.write(s)
}

// cut terminates the incomplete lines of a run: the next run starts its own.
func (p *printer) cut() error {
	for i := range p.streams {
		s := &p.streams[i]
		if s.joining && !s.skipped {
			s.buf = append(s.buf, '\n')
		}
		s.joining = false
	}
	return p.flush()
}

// flush writes incomplete lines whose end does not follow.
func (p *printer) flush() error {
	for i := range p.streams {
		if err := p.write(&p.streams[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) write(s *stream) error {
	b := s.buf
	if len(b) == 0 {
		return nil
	}
	last := p.limited && int64(len(b)) >= p.remaining
	if last {
		b = b[:p.remaining]
	}
	p.remaining -= int64(len(b))
	_, err := s.out.Write(b)
	s.written = s.joining
	if s.buf = s.buf[:0]; cap(s.buf) > 2*maxHeldLine {
		s.buf = nil
	}
	switch {
	case err != nil:
		return fmt.Errorf("write log: %w", err)
	case last:
		return errLimitReached
	}
	return nil
}
