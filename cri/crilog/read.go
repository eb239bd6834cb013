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

// Options configure Read.
type Options struct {
	// Path is the log of one attempt of a container, the file that the runtime writes. The rotated
	// files next to it are part of it.
	Path string
	// Follow continues to read as the log grows, until Done.
	Follow bool
	// Done is closed when the container has exited and its log is complete. Nil: never. It is
	// ignored without Follow.
	Done <-chan struct{}
	// NextRun is called when a followed log is complete: it waits for the log of the container's
	// next run and returns it with its own Done. It returns false if there is no next run. Nil:
	// only the first log is read.
	NextRun func(ctx context.Context) (path string, done <-chan struct{}, more bool)
	// Tail starts at the last so many lines. Nil: at the first existing line.
	Tail *int64
	// Since skips older lines. Zero: none.
	Since time.Time
	// Timestamps prefixes each line with its time.
	Timestamps bool
	// LimitBytes limits the output in bytes. 0: no limit.
	LimitBytes int64
	// Stdout and Stderr receive the lines of the streams. Nil: that stream is not requested. They
	// may be the same writer and are never used concurrently.
	Stdout, Stderr io.Writer
}

// Read writes the log as the container wrote it. Deleted lines are skipped silently. It returns nil
// when everything is written, fs.ErrNotExist (wrapped) if there is no log, the context's error if
// ctx ends first, and the error of a writer. A damaged rotated file does not prevent newer files
// from being read. Its error is returned at the end.
func Read(ctx context.Context, o Options) error {
	r := &reader{o: o, p: newPrinter(o), block: make([]byte, blockSize)}
	defer r.close()
	err := r.readAll(ctx)
	if err == nil {
		err = r.p.flush()
	}
	if errors.Is(err, errLimitReached) {
		err = nil
	}
	return errors.Join(err, errors.Join(r.errs...))
}

// readAll reads the log and, when following, the logs of the next runs.
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
		r.splitter.reset()
		r.o.Path, r.o.Done, r.o.Tail = path, done, nil
		if err = r.read(ctx); errors.Is(err, fs.ErrNotExist) { // this run has no log
			err = nil
		}
	}
	return err
}

// reader is the state of one call of Read.
type reader struct {
	o        Options
	p        *printer
	block    []byte
	splitter splitter // of the current file
	file     *os.File // the current file, which may still grow; nil: none
	offset   int64    // read position in the current file
	known    []string // rotated files older than the current file
	errs     []error
}

func (r *reader) close() {
	if r.file != nil {
		_ = r.file.Close()
	}
}

func (r *reader) read(ctx context.Context) error {
	var w *dirWatch
	if r.o.Follow { // before the first read, so that no change is missed
		var err error
		if w, err = newDirWatch(r.o.Path); err != nil {
			return err
		}
		defer w.close()
	}
	var older []rotatedFile
	for {
		last := !r.o.Follow || closed(r.o.Done)
		var err error
		if older, err = r.openCurrent(); err == nil {
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
	if err := r.readCurrent(ctx); err != nil {
		return err
	}
	if !r.o.Follow {
		return r.splitter.end(r.p.print)
	}
	return r.follow(ctx, w)
}

// openCurrent opens the current file and lists the older rotated ones. In the middle of a rotation,
// the newest rotated file is the current one, because the runtime still writes it.
func (r *reader) openCurrent() ([]rotatedFile, error) {
	f, older, err := openSnapshot(r.o.Path)
	if err != nil {
		return nil, err
	}
	if f == nil {
		if len(older) == 0 {
			return nil, &fs.PathError{Op: "open", Path: r.o.Path, Err: fs.ErrNotExist}
		}
		if last := len(older) - 1; !older[last].compressed {
			if f, err = os.Open(older[last].path); err != nil {
				return nil, err
			}
			older = older[:last]
		}
	}
	r.setCurrent(f, older)
	return older, nil
}

// setCurrent makes f the current file, after the older ones.
func (r *reader) setCurrent(f *os.File, older []rotatedFile) {
	r.file, r.offset = f, 0
	r.splitter.reset()
	r.known = r.known[:0]
	for _, o := range older {
		r.known = append(r.known, o.path)
	}
}

// readOlder reads the requested part of the rotated files, and seeks to the start in the current
// file.
func (r *reader) readOlder(ctx context.Context, older []rotatedFile) error {
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

// seekTail finds the file and the offset at which the last n lines start. If that is in the current
// file, first is beyond the rotated ones.
func (r *reader) seekTail(older []rotatedFile, n int64) (first int, offset int64, err error) {
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
			r.errs = append(r.errs, err)
			return i + 1, 0, nil
		}
		if found >= n {
			return i, offset, nil
		}
		n -= found
	}
	return 0, 0, nil
}

func (r *reader) tailOfRotated(o rotatedFile, n int64) (offset, found int64, err error) {
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

// readRotated reads a file that does not grow any more, from an offset. A file that is completely
// older than requested is not opened.
func (r *reader) readRotated(ctx context.Context, o rotatedFile, offset int64) error {
	if st, err := os.Stat(o.name()); err == nil && st.ModTime().Before(r.o.Since) {
		return nil
	}
	in, err := o.open()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.errs = append(r.errs, err)
		}
		return nil
	}
	defer in.Close()
	if _, err := io.CopyN(io.Discard, in, offset); err != nil {
		r.errs = append(r.errs, fmt.Errorf("read %s: %w", o.name(), err))
		return nil
	}
	var s splitter
	if _, err := r.copyRecords(ctx, in, &s); err != nil {
		if damaged, ok := errors.AsType[*readError](err); ok {
			r.errs = append(r.errs, fmt.Errorf("read %s: %w", o.name(), damaged.err))
		} else {
			return err
		}
	}
	return s.end(r.p.print)
}

// readError is an error of the source, as opposed to the destination.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// copyRecords reads to the end.
func (r *reader) copyRecords(ctx context.Context, in io.Reader, s *splitter) (n int64, err error) {
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

// readCurrent reads the available part of the current file.
func (r *reader) readCurrent(ctx context.Context) error {
	if r.file == nil {
		return nil
	}
	if _, err := r.file.Seek(r.offset, io.SeekStart); err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	var in io.Reader = r.file
	if !r.o.Follow { // only what exists now: otherwise a fast writer would prevent it from ending
		st, err := r.file.Stat()
		if err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		in = io.LimitReader(in, st.Size()-r.offset)
	}
	n, err := r.copyRecords(ctx, in, &r.splitter)
	r.offset += n
	if _, ok := errors.AsType[*readError](err); ok {
		return fmt.Errorf("read log: %w", err)
	}
	return err
}

// LastLines returns the end of what a container wrote to both streams, limited to a number of lines
// and bytes. It replaces a missing termination message.
func LastLines(ctx context.Context, path string, lines, bytes int) ([]byte, error) {
	keep := &tailBuffer{most: bytes}
	tail := int64(lines)
	err := Read(ctx, Options{Path: path, Tail: &tail, Stdout: keep, Stderr: keep})
	return keep.b, err
}

// tailBuffer keeps the last bytes that are written to it.
type tailBuffer struct {
	b    []byte
	most int
}

func (e *tailBuffer) Write(p []byte) (int, error) {
	e.b = append(e.b, p[max(len(p)-e.most, 0):]...)
	if over := len(e.b) - e.most; over > 0 {
		e.b = e.b[:copy(e.b, e.b[over:])]
	}
	return len(p), nil
}
