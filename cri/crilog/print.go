package crilog

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// stampFormat has a fixed width, so that lines are aligned.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// heldMax bounds how much of a joined line waits for its end.
const heldMax = 256 << 10

// errLimit says that LimitBytes have been written.
var errLimit = errors.New("limit reached")

// printer writes records as the lines that the container wrote.
type printer struct {
	streams [2]stream // stdout, stderr
	since   time.Time
	stamps  bool
	limited bool
	left    int64 // bytes, if limited
}

// stream is the line that is being put together of one stream. It is written
// when it is complete, so that two streams into one writer do not mix.
type stream struct {
	out     io.Writer // nil: not wanted
	held    []byte
	joining bool // inside a line
	begun   bool // something of that line has been written
	skipped bool // that line is older than asked for
}

func newPrinter(o Options) *printer {
	return &printer{
		streams: [2]stream{{out: o.Stdout}, {out: o.Stderr}},
		since:   o.Since, stamps: o.Timestamps,
		limited: o.LimitBytes > 0, left: o.LimitBytes,
	}
}

func (p *printer) of(l Line) *stream {
	if l.Stderr {
		return &p.streams[1]
	}
	return &p.streams[0]
}

// wants reports whether the record's stream is asked for.
func (p *printer) wants(l Line) bool { return p.of(l).out != nil }

func (p *printer) print(l Line) error {
	s := p.of(l)
	if isMarker(l) {
		if err := p.gap(); err != nil {
			return err
		}
	}
	if s.out == nil {
		return nil
	}
	if !s.joining {
		s.skipped = l.Time.Before(p.since)
		if p.stamps && !s.skipped {
			s.held = append(l.Time.AppendFormat(s.held, stampFormat), ' ')
		}
	}
	s.begun = s.begun && s.joining
	s.joining = l.Partial
	if s.skipped {
		return nil
	}
	s.held = append(s.held, l.Text...)
	if !l.Partial {
		s.held = append(s.held, '\n')
	} else if len(s.held) < heldMax {
		return nil
	}
	return p.write(s)
}

// cut ends the lines that a run has left open: the next run begins its own.
func (p *printer) cut() error {
	for i := range p.streams {
		s := &p.streams[i]
		if s.joining && !s.skipped {
			s.held = append(s.held, '\n')
		}
		s.joining = false
	}
	return p.flush()
}

// gap forgets the lines that are open: they have lost their end. What has been
// written of one is ended.
func (p *printer) gap() error {
	for i := range p.streams {
		s := &p.streams[i]
		if s.joining && !s.begun {
			s.joining, s.held = false, s.held[:0]
		}
	}
	return p.cut()
}

// flush writes what waits for an end that does not come.
func (p *printer) flush() error {
	for i := range p.streams {
		if err := p.write(&p.streams[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *printer) write(s *stream) error {
	b := s.held
	if len(b) == 0 {
		return nil
	}
	last := p.limited && int64(len(b)) >= p.left
	if last {
		b = b[:p.left]
	}
	p.left -= int64(len(b))
	_, err := s.out.Write(b)
	s.begun = s.joining
	if s.held = s.held[:0]; cap(s.held) > 2*heldMax {
		s.held = nil
	}
	switch {
	case err != nil:
		return fmt.Errorf("write log: %w", err)
	case last:
		return errLimit
	}
	return nil
}
