package crilog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// dirWatch waits for changes in the directory of a log.
type dirWatch struct{ watcher *fsnotify.Watcher }

func newDirWatch(log string) (*dirWatch, error) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch log: %w", err)
	}
	if err := n.Add(filepath.Dir(log)); err != nil {
		_ = n.Close()
		return nil, fmt.Errorf("watch log: %w", err)
	}
	return &dirWatch{n}, nil
}

func (w *dirWatch) close() { _ = w.watcher.Close() }

// wait returns after a change, when done is closed, or with the context's error. Concurrent changes
// are merged.
func (w *dirWatch) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	case <-w.watcher.Events:
	case err := <-w.watcher.Errors:
		if !errors.Is(err, fsnotify.ErrEventOverflow) { // an overflow is a change too
			return fmt.Errorf("watch log: %w", err)
		}
	}
	for {
		select {
		case <-w.watcher.Events:
		default:
			return nil
		}
	}
}

// follow continues to read as the log grows.
//
//	        grown                          rotated: the new file has content
//	  ┌──────────────┐            ┌──────────────────────────────────────────┐
//	  ▼              │            ▼                                          │
//	readCurrent ──► advance ──► missed files ──► next file ──────────────────┘
//	                 │ no change
//	                 ▼
//	  container exited? ── yes ──► everything is read
//	                 │ no
//	                 ▼
//	         wait for a change
func (r *reader) follow(ctx context.Context, w *dirWatch) error {
	for {
		ended := closed(r.o.Done) // checked before reading, so that everything before the exit is read
		if err := r.readCurrent(ctx); err != nil {
			return err
		}
		moved, err := r.advance(ctx)
		switch {
		case err != nil:
			return err
		case moved:
			continue
		case ended:
			return r.splitter.end(r.p.print)
		}
		if err := w.wait(ctx, r.o.Done); err != nil {
			return err
		}
	}
}

// advance moves on to the file that the runtime currently writes, and reports whether there is more
// to read. An empty new file does not count yet: until it, or another file in between, has content,
// the runtime may still write to the old one.
func (r *reader) advance(ctx context.Context) (bool, error) {
	st, err := os.Stat(r.o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open log: %w", err)
	}
	if r.file != nil {
		have, err := r.file.Stat()
		same := err == nil && os.SameFile(have, st)
		if same && st.Size() < r.offset { // truncated in place
			r.offset = 0
			r.splitter.reset()
			return true, nil
		}
		if same {
			return false, nil
		}
		if st.Size() == 0 {
			older, err := rotatedFiles(r.o.Path)
			if err != nil || len(r.missedFiles(older)) == 0 {
				return false, err
			}
		}
	}
	if r.file != nil { // the runtime may still write to the old file
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(lateWriteDelay):
		}
	}
	return r.replace(ctx)
}

// lateWriteDelay is how long a runtime may still write to a log after its first write to the next
// one.
const lateWriteDelay = 20 * time.Millisecond

// replace finishes the current file, reads the files that were created and rotated since, and
// continues with the newest one.
func (r *reader) replace(ctx context.Context) (bool, error) {
	f, older, err := openSnapshot(r.o.Path)
	if err != nil {
		return false, fmt.Errorf("open log: %w", err)
	}
	if f == nil { // rotated again: another change follows
		return false, nil
	}
	err = r.readCurrent(ctx) // written between the last read and the new file
	if err == nil {
		err = r.splitter.end(r.p.print)
	}
	if err != nil {
		_ = f.Close()
		return false, err
	}
	missed := r.missedFiles(older)
	if r.file != nil {
		_ = r.file.Close()
	}
	r.setCurrent(f, older)
	for _, m := range missed {
		if err := r.readRotated(ctx, m, 0); err != nil {
			return false, err
		}
	}
	return true, nil
}

// missedFiles returns the rotated files that are newer than the current file. The first one is the
// current file itself, which may have been compressed (with its modification time preserved),
// unless it was deleted.
func (r *reader) missedFiles(older []rotatedFile) []rotatedFile {
	added := slices.DeleteFunc(slices.Clone(older), func(o rotatedFile) bool {
		return slices.Contains(r.known, o.path)
	})
	if r.file == nil || len(added) == 0 {
		return added
	}
	have, errHave := r.file.Stat()
	if errHave != nil {
		return added[1:]
	}
	if st, err := os.Stat(added[0].path); err == nil {
		if !os.SameFile(have, st) {
			return added
		}
	} else if st, err := os.Stat(added[0].path + zipSuffix); err == nil && !st.ModTime().Equal(have.ModTime()) {
		return added
	}
	return added[1:]
}

// closed reports whether a channel is closed. A nil channel never is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
