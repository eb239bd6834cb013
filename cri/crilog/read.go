package crilog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Options say what to read and how.
type Options struct {
	// Path is the log of one attempt of a container, the file that the runtime
	// writes; rotated ones beside it belong to it.
	Path string
	// Follow goes on reading as the log grows, until Done.
	Follow bool
	// Done is closed when the container has ended and its log is complete; nil:
	// never. Without Follow it means nothing.
	Done <-chan struct{}
	// NextRun is asked when a followed log is complete: it waits for the log of the
	// container's next run and gives that with its own Done. It returns false
	// when there will be none. Nil: the first log is all.
	NextRun func(ctx context.Context) (path string, done <-chan struct{}, more bool)
	// Tail begins with the last so many lines; nil: with the first one there is.
	Tail *int64
	// Since leaves out lines that are older; zero: none.
	Since time.Time
	// Timestamps puts the time before each line.
	Timestamps bool
	// LimitBytes ends after so many bytes of output; 0: no limit.
	LimitBytes int64
	// Stdout and Stderr take the lines of the streams; nil: that stream is not
	// wanted. They may be the same writer and are never used at once.
	Stdout, Stderr io.Writer
}

// Read writes the log as the container wrote it. Lines that are not there any
// more are left out silently. It returns nil when all is written, fs.ErrNotExist
// (wrapped) if there is no log, the context's error when that ends first, and
// the error of a writer. A rotated file that is damaged does not keep what is
// after it from being read; its error is returned in the end.
func Read(ctx context.Context, o Options) error {
	r := &reader{o: o, p: newPrinter(o), block: make([]byte, blockSize)}
	defer r.close()
	err := r.readAll(ctx)
	if err == nil {
		err = r.p.flush()
	}
	if errors.Is(err, errLimit) {
		err = nil
	}
	return errors.Join(err, errors.Join(r.damage...))
}

// readAll reads the log and, when it is followed, those of the runs after it.
func (r *reader) readAll(ctx context.Context) error {
	err := r.read(ctx)
	for err == nil && r.o.Follow && r.o.NextRun != nil {
		path, done, more := r.o.NextRun(ctx)
		if !more {
			return ctx.Err()
		}
		if err = r.p.cut(); err != nil {
			return err
		}
		r.close()
		r.file, r.offset, r.known = nil, 0, nil
		r.split.reset()
		r.o.Path, r.o.Done, r.o.Tail = path, done, nil
		if err = r.read(ctx); errors.Is(err, fs.ErrNotExist) { // a run without a log
			err = nil
		}
	}
	return err
}

// reader is one call of Read.
type reader struct {
	o      Options
	p      *printer
	block  []byte
	split  splitter // of the current file
	file   *os.File // the current file, which may still grow; nil: none
	offset int64    // read of it
	known  []string // rotated files that were there before it
	damage []error
}

func (r *reader) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

func (r *reader) read(ctx context.Context) error {
	var w *watch
	if r.o.Follow { // before the first look, so that nothing is missed
		var err error
		if w, err = newWatch(r.o.Path); err != nil {
			return err
		}
		defer w.close()
	}
	var older []rotated
	for {
		last := !r.o.Follow || closed(r.o.Done)
		var err error
		if older, err = r.begin(); err == nil {
			break
		}
		if last || !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("open log: %w", err)
		}
		if err := w.wait(ctx, r.o.Done); err != nil {
			return err
		}
	}
	if err := r.readOlder(ctx, older); err != nil {
		return err
	}
	if err := r.drain(ctx); err != nil {
		return err
	}
	if !r.o.Follow {
		return r.split.end(r.p.print)
	}
	return r.follow(ctx, w)
}

// begin opens the current file and lists the rotated ones before it. While a
// rotation is half done there is only the newest of those: the runtime still
// writes it.
func (r *reader) begin() ([]rotated, error) {
	f, older, err := snapshot(r.o.Path)
	if err != nil {
		return nil, err
	}
	if f == nil {
		if len(older) == 0 {
			return nil, &fs.PathError{Op: "open", Path: r.o.Path, Err: fs.ErrNotExist}
		}
		if last := len(older) - 1; !older[last].zip {
			if f, err = os.Open(older[last].path); err != nil {
				return nil, err
			}
			older = older[:last]
		}
	}
	r.adopt(f, older)
	return older, nil
}

// adopt makes f the current file, after the older ones.
func (r *reader) adopt(f *os.File, older []rotated) {
	r.file, r.offset = f, 0
	r.split.reset()
	r.known = r.known[:0]
	for _, o := range older {
		r.known = append(r.known, o.path)
	}
}

// readOlder reads as much of the rotated files as was asked for, and moves to
// where reading the current file begins.
func (r *reader) readOlder(ctx context.Context, older []rotated) error {
	first, offset := 0, int64(0)
	if r.o.Tail != nil {
		var err error
		if first, offset, err = r.seekTail(older, max(*r.o.Tail, 0)); err != nil {
			return err
		}
	}
	for i := first; i < len(older); i++ {
		if err := r.readRotated(ctx, older[i], offset); err != nil {
			return err
		}
		offset = 0
	}
	return nil
}

// seekTail finds the file and the offset in it where the last n lines begin. If
// that is in the current file, first is beyond the rotated ones.
func (r *reader) seekTail(older []rotated, n int64) (first int, offset int64, err error) {
	if r.file != nil {
		st, err := r.file.Stat()
		if err != nil {
			return 0, 0, err
		}
		offset, found, err := tailOf(r.file, st.Size(), n, r.p.wants)
		if err != nil {
			return 0, 0, err
		}
		if found >= n {
			r.offset = offset
			return len(older), 0, nil
		}
		n -= found
	}
	for i, o := range slices.Backward(older) {
		offset, found, err := r.tailOfRotated(o, n)
		if err != nil {
			r.damage = append(r.damage, err)
			return i + 1, 0, nil
		}
		if found >= n {
			return i, offset, nil
		}
		n -= found
	}
	return 0, 0, nil
}

func (r *reader) tailOfRotated(o rotated, n int64) (offset, found int64, err error) {
	in, err := o.open()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	defer in.Close()
	f, plain := in.(*os.File)
	if !plain {
		return tailOfStream(in, n, r.p.wants)
	}
	st, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	return tailOf(f, st.Size(), n, r.p.wants)
}

// readRotated reads a file that grows no more, from an offset. One that is older
// than asked for as a whole is not opened.
func (r *reader) readRotated(ctx context.Context, o rotated, offset int64) error {
	if st, err := os.Stat(o.file()); err == nil && st.ModTime().Before(r.o.Since) {
		return nil
	}
	in, err := o.open()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.damage = append(r.damage, err)
		}
		return nil
	}
	defer in.Close()
	if _, err := io.CopyN(io.Discard, in, offset); err != nil {
		r.damage = append(r.damage, fmt.Errorf("read %s: %w", o.file(), err))
		return nil
	}
	var s splitter
	if _, err := r.pour(ctx, in, &s); err != nil {
		if damaged, ok := errors.AsType[*readError](err); ok {
			r.damage = append(r.damage, fmt.Errorf("read %s: %w", o.file(), damaged.err))
		} else {
			return err
		}
	}
	return s.end(r.p.print)
}

// readError is an error of what is read, as opposed to what is written to.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// pour reads to the end.
func (r *reader) pour(ctx context.Context, in io.Reader, s *splitter) (n int64, err error) {
	for ctx.Err() == nil {
		k, err := in.Read(r.block)
		n += int64(k)
		if err := s.feed(r.block[:k], r.p.print); err != nil {
			return n, err
		}
		switch {
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, &readError{err}
		}
	}
	return n, ctx.Err()
}

// drain reads what there is of the current file.
func (r *reader) drain(ctx context.Context) error {
	if r.file == nil {
		return nil
	}
	if _, err := r.file.Seek(r.offset, io.SeekStart); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	var in io.Reader = r.file
	if !r.o.Follow { // what there is now: a fast writer would keep it from ending
		st, err := r.file.Stat()
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		in = io.LimitReader(in, st.Size()-r.offset)
	}
	n, err := r.pour(ctx, in, &r.split)
	r.offset += n
	if _, ok := errors.AsType[*readError](err); ok {
		return fmt.Errorf("read log: %w", err)
	}
	return err
}
