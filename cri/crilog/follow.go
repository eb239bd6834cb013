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

// watch wakes when something happens in the folder of a log.
type watch struct{ notify *fsnotify.Watcher }

func newWatch(log string) (*watch, error) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch log: %w", err)
	}
	if err := n.Add(filepath.Dir(log)); err != nil {
		_ = n.Close()
		return nil, fmt.Errorf("watch log: %w", err)
	}
	return &watch{n}, nil
}

func (w *watch) close() { _ = w.notify.Close() }

// wait returns after a change, when done is closed, or with the context's error.
// Changes that came together wake once.
func (w *watch) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	case <-w.notify.Events:
	case err := <-w.notify.Errors:
		if !errors.Is(err, fsnotify.ErrEventOverflow) { // then too much has happened: look
			return fmt.Errorf("watch log: %w", err)
		}
	}
	for {
		select {
		case <-w.notify.Events:
		default:
			return nil
		}
	}
}

// follow reads on as the log grows.
//
//	      grown                      rotated: the new file has content
//	  ┌──────────┐            ┌────────────────────────────────────────┐
//	  ▼          │            ▼                                        │
//	drain ──► advance ──► missed files ──► next file ──────────────────┘
//	             │ nothing new
//	             ▼
//	  container ended? ── yes ──► all is read
//	             │ no
//	             ▼
//	     wait for a change
func (r *reader) follow(ctx context.Context, w *watch) error {
	for {
		ended := closed(r.o.Done) // asked before reading: what came before it is then read
		if err := r.drain(ctx); err != nil {
			return err
		}
		moved, err := r.advance(ctx)
		switch {
		case err != nil:
			return err
		case moved:
			continue
		case ended:
			return r.split.end(r.p.print)
		}
		if err := w.wait(ctx, r.o.Done); err != nil {
			return err
		}
	}
}

// advance goes on to the file that the runtime writes now, and reports whether
// there is more to read. An empty new file is not yet it: until something is in
// it, or in another between them, the runtime may still write to the old one.
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
			r.split.reset()
			return true, nil
		}
		if same {
			return false, nil
		}
		if st.Size() == 0 {
			older, err := chain(r.o.Path)
			if err != nil || len(r.missed(older)) == 0 {
				return false, err
			}
		}
	}
	if r.file != nil { // the runtime may have lines for the old file yet
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(lateLines):
		}
	}
	return r.replace(ctx)
}

// lateLines is how long a runtime may go on writing to a log after it has begun
// to write to the next one.
const lateLines = 20 * time.Millisecond

// replace ends the current file, reads those that came and were rotated since,
// and begins with the one that is there now.
func (r *reader) replace(ctx context.Context) (bool, error) {
	f, older, err := snapshot(r.o.Path)
	if err != nil {
		return false, fmt.Errorf("open log: %w", err)
	}
	if f == nil { // rotated again: there will be another change
		return false, nil
	}
	err = r.drain(ctx) // what came between the last look and the new file
	if err == nil {
		err = r.split.end(r.p.print)
	}
	if err != nil {
		_ = f.Close()
		return false, err
	}
	missed := r.missed(older)
	if r.file != nil {
		_ = r.file.Close()
	}
	r.adopt(f, older)
	for _, m := range missed {
		if err := r.readRotated(ctx, m, 0); err != nil {
			return false, err
		}
	}
	return true, nil
}

// missed gives the rotated files that came after the current file. The first of
// the new ones is the current file itself, plain or compressed by now (then it
// has kept its time), unless that is gone.
func (r *reader) missed(older []rotated) []rotated {
	added := slices.DeleteFunc(slices.Clone(older), func(o rotated) bool { return slices.Contains(r.known, o.path) })
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

// closed reports whether a channel is closed; nil never is.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
