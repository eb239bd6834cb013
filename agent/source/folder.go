package source

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// How long a change must be quiet before it is believed. They are short enough
// not to be felt and long enough for an editor to save.
const (
	settleDelay     = 20 * time.Millisecond  // a file found by a scan, or made but not yet closed
	openWriterDelay = 500 * time.Millisecond // a file that somebody has open for writing
	confirmDelay    = 100 * time.Millisecond // a file that is gone, empty or bad all of a sudden
)

// DirectoryOptions is what NewFolder needs. Path and NodeName must be given.
type DirectoryOptions struct {
	Path           string // of the folder, or of one file
	NodeName       string
	SuffixNodeName bool             // see Identity
	RescanInterval time.Duration    // full rescan beside inotify; default 20 s
	Log            *slog.Logger     // nil: silent
	Now            func() time.Time // default time.Now

	// PreviousPod tells what an earlier life of the agent knew of a pod, so that it keeps
	// its birth. It is asked until the first Snapshot; nil: nothing is known.
	PreviousPod func(types.UID) *corev1.Pod

	silent, doubt time.Duration // see the constants, which tests must not race
}

// Directory is a source of manifest files.
type Directory struct {
	opt   DirectoryOptions
	id    Identity
	watch *inotify // nil: not available, rescans only

	// Of Run alone.
	files     map[string]*fileState // by path
	dirError  *FileError            // why the folder cannot be read
	absent    bool                  // there is no folder
	owners    map[any]string        // which file has an object that is wanted, see share
	conflicts map[string]time.Time  // since when two files want the same object, by what is told
	changed   bool                  // since the last Snapshot
	ignored   map[string]bool       // names in the folder that no manifest has: told once
	scanned   bool                  // once in full
	ready     bool
}

// NewDirectory returns a source for a folder or file, which need not exist yet.
func NewDirectory(o DirectoryOptions) *Directory {
	if o.RescanInterval <= 0 {
		o.RescanInterval = 20 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.silent, o.doubt = cmp.Or(o.silent, openWriterDelay), cmp.Or(o.doubt, confirmDelay)
	o.Path = filepath.Clean(o.Path)
	return &Directory{opt: o, id: Identity{NodeName: o.NodeName, SuffixNodeName: o.SuffixNodeName}, files: map[string]*fileState{}}
}

// Run reads and watches until ctx ends. It calls emit, always from this
// goroutine, with every new Snapshot; the first has everything that is there
// and is Ready. It returns nil when ctx ends.
func (f *Directory) Run(ctx context.Context, emit func(Snapshot)) error {
	events := make(chan []rawEvent, 16)
	if w, err := newInotify(); err != nil {
		f.opt.Log.Warn("Manifest files are looked at from time to time only", "path", f.opt.Path, "every", f.opt.RescanInterval, "reason", err)
	} else {
		f.watch = w
		var reader sync.WaitGroup
		ctx, stop := context.WithCancel(ctx)
		reader.Go(func() { w.read(ctx, events) })
		defer func() {
			stop()
			_ = w.close() // ends the reader; there is nothing to lose
			reader.Wait()
			f.watch = nil
		}()
	}
	rescan := time.NewTicker(f.opt.RescanInterval)
	defer rescan.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()

	f.scan()
	for {
		next := f.readDue()
		f.publish(next, emit)
		due.Reset(wait(next, f.opt.Now()))
		select {
		case <-ctx.Done():
			return nil
		case batch := <-events:
			f.handleEvents(batch)
			for more := true; more; { // what else is there belongs to the same change
				select {
				case batch := <-events:
					f.handleEvents(batch)
				default:
					more = false
				}
			}
		case <-rescan.C:
			f.scan()
		case <-due.C:
		}
	}
}

func wait(next, now time.Time) time.Duration {
	if next.IsZero() {
		return time.Hour
	}
	return max(next.Sub(now), 0)
}

// publish emits a Snapshot if something has changed. The first waits until
// every file that was found has been judged.
func (f *Directory) publish(next time.Time, emit func(Snapshot)) {
	if !f.ready {
		if !f.scanned || !next.IsZero() {
			return
		}
		f.ready, f.changed = true, true
	}
	if f.changed {
		f.changed = false
		emit(f.snapshot())
		f.opt.PreviousPod = nil // what comes from now on is new
	}
}

// handleEvents notes what a batch of events asks for.
func (f *Directory) handleEvents(batch []rawEvent) {
	rescan := false
	for _, raw := range batch {
		e, ok := f.watch.resolve(raw)
		if ok {
			rescan = f.event(e) || rescan
		}
	}
	if rescan {
		f.scan()
	}
}

// event notes one event. True: a scan is needed.
func (f *Directory) event(e fileEvent) bool {
	now := f.opt.Now()
	path := filepath.Join(e.dir, e.name)
	switch {
	case e.mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0, e.name == "":
		return true
	case path == f.opt.Path && e.mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE) == 0:
		return true // the folder itself has come, gone or been replaced
	case strings.HasPrefix(e.name, "..") && e.mask&unix.IN_MOVED_TO != 0:
		return true // the data of a projected volume was swapped under its links
	case !f.wanted(path):
		return false
	}
	s := f.files[path]
	if s == nil {
		if e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 {
			return false
		}
		s = &fileState{path: path}
		f.files[path] = s
	}
	s.read.known = false
	switch {
	case e.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO) != 0:
		s.due, s.closed = now, true
	case e.mask&unix.IN_MODIFY != 0:
		s.due, s.closed = now.Add(f.opt.silent), false
	default: // made, gone or its rights changed: look, and see how fresh it is
		if s.due.IsZero() {
			s.due, s.closed = now, false
		}
	}
	return false
}

// wanted reports whether path is a file of this source.
func (f *Directory) wanted(path string) bool {
	if path == f.opt.Path {
		return true
	}
	return filepath.Dir(path) == f.opt.Path && manifestName(filepath.Base(path))
}

// scan looks at the whole folder and notes which files must be read.
func (f *Directory) scan() {
	f.rewatch()
	paths, err := f.list()
	f.scanned = true
	if err != nil { // unreadable is not empty: what was good stays
		f.recordDirectoryError(err)
		return
	}
	if f.dirError != nil {
		f.dirError, f.changed = nil, true
	}
	now := f.opt.Now()
	there := make(map[string]bool, len(paths))
	for _, path := range paths {
		there[path] = true
		if f.files[path] == nil {
			f.files[path] = &fileState{path: path}
		}
	}
	for path, s := range f.files {
		if s.due.IsZero() && (!there[path] || !s.read.known || s.read.stale(path)) {
			s.due, s.closed = now, false
		}
	}
}

// rewatch sees to it that the folder, and the place where it would appear, are
// watched. Without inotify there are the rescans.
func (f *Directory) rewatch() {
	if f.watch == nil {
		return
	}
	for _, dir := range []string{filepath.Dir(f.opt.Path), f.opt.Path} {
		err := f.watch.add(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			f.opt.Log.Warn("Manifest files are looked at from time to time only", "path", dir, "every", f.opt.RescanInterval, "reason", err)
		}
	}
}

// list returns the paths of the files of this source, sorted. A folder that is
// not there is empty.
func (f *Directory) list() ([]string, error) {
	st, err := os.Stat(f.opt.Path)
	if was := f.absent; errors.Is(err, fs.ErrNotExist) {
		if f.absent = true; !was {
			f.opt.Log.Info("There is no manifest folder; it is waited for", "path", f.opt.Path)
		}
		return nil, nil
	}
	f.absent = false
	switch {
	case err != nil:
		return nil, err
	case !st.IsDir():
		return []string{f.opt.Path}, nil
	}
	entries, err := os.ReadDir(f.opt.Path)
	if err != nil {
		return nil, err
	}
	var paths []string
	passed := map[string]bool{}
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir() || ignoredName(name):
		case manifestName(name):
			paths = append(paths, filepath.Join(f.opt.Path, name))
		default:
			passed[name] = true
		}
	}
	f.reportIgnored(passed)
	return paths, nil
}

func (f *Directory) recordDirectoryError(err error) {
	text := errorText(err)
	if f.dirError != nil && f.dirError.Message == text {
		return
	}
	f.dirError = &FileError{Path: f.opt.Path, Message: text, Since: f.opt.Now(), LastGoodKept: len(f.files) > 0}
	f.changed = true
	f.opt.Log.Error("The manifest folder cannot be read; what was good stays", "path", f.opt.Path, "reason", text)
}

// errorText is an error without the path, which is told beside it.
func errorText(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Op + ": " + e.Err.Error()
	}
	return err.Error()
}
