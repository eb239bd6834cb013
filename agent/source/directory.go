package source

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Delays before a change takes effect. They are too short to be noticed, and long enough for an
// editor to save a file.
const (
	settleDelay     = 20 * time.Millisecond  // a file found by a scan, or created but not closed
	openWriterDelay = 500 * time.Millisecond // a file that is open for writing
	confirmDelay    = 100 * time.Millisecond // a file that became missing, empty or invalid
)

// DirectoryOptions configures a Directory. Path and NodeName are required.
type DirectoryOptions struct {
	Path           string // of the directory, or of one file
	NodeName       string
	SuffixNodeName bool             // see Identity
	RescanInterval time.Duration    // full rescan in addition to inotify; default 20 s
	Log            *slog.Logger     // nil: discard
	Now            func() time.Time // default time.Now

	// PreviousPod returns a pod of the previous run of the agent, so that it keeps its creation
	// timestamp and generation. It is called until the first Snapshot. It may be nil.
	PreviousPod func(types.UID) *corev1.Pod

	openWriterDelay, confirmDelay time.Duration // see the constants; tests set their own
}

// Directory is the source of the pods of manifest files.
type Directory struct {
	opt   DirectoryOptions
	id    Identity
	watch *inotify // nil: not available, rescans only

	// Owned by Run.
	files     map[string]*fileState // by path
	dirError  *FileError            // why the directory cannot be read
	absent    bool                  // the directory does not exist
	owners    map[any]string        // file that owns each desired object, see assignOwners
	conflicts map[string]time.Time  // since when two files have the same object, by error text
	changed   bool                  // since the last Snapshot
	ignored   map[string]bool       // names in the directory that are not manifests, logged once
	scanned   bool                  // scanned completely once
	ready     bool
}

// NewDirectory returns a source for a directory or file, which need not exist yet.
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
	o.openWriterDelay, o.confirmDelay = cmp.Or(
		o.openWriterDelay,
		openWriterDelay,
	), cmp.Or(
		o.confirmDelay,
		confirmDelay,
	)
	o.Path = filepath.Clean(o.Path)
	return &Directory{
		opt:   o,
		id:    Identity{NodeName: o.NodeName, SuffixNodeName: o.SuffixNodeName},
		files: map[string]*fileState{},
	}
}

// Run reads and watches until ctx ends, and returns nil then. It calls emit with every new
// Snapshot, always from its own goroutine. The first Snapshot is complete and Ready.
func (f *Directory) Run(ctx context.Context, emit func(Snapshot)) error {
	events := make(chan []rawEvent, 16)
	if w, err := newInotify(); err != nil {
		f.opt.Log.Warn("inotify unavailable, manifest directory is polled", "path", f.opt.Path,
			"interval", f.opt.RescanInterval, "err", err)
	} else {
		f.watch = w
		var reader sync.WaitGroup
		ctx, stop := context.WithCancel(ctx)
		reader.Go(func() { w.read(ctx, events) })
		defer func() {
			stop()
			_ = w.close() // ends the reader
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
			for more := true; more; { // pending batches belong to the same change
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

// publish emits a Snapshot if something has changed. The first one waits until every file found has
// been validated.
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
		f.opt.PreviousPod = nil // later pods are new
	}
}

// handleEvents handles a batch of events.
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

// event handles one event. It returns true if a scan is needed.
func (f *Directory) event(e fileEvent) bool {
	now := f.opt.Now()
	path := filepath.Join(e.dir, e.name)
	switch {
	case e.mask&(unix.IN_Q_OVERFLOW|unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0, e.name == "":
		return true
	case path == f.opt.Path && e.mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE) == 0:
		return true // the directory itself was created, deleted or replaced
	case strings.HasPrefix(e.name, "..") && e.mask&unix.IN_MOVED_TO != 0:
		return true // the data of a projected volume was replaced
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
		s.due, s.closed = now.Add(f.opt.openWriterDelay), false
	default: // created, deleted or its mode changed: read it, depending on its age
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

// scan lists the directory and schedules the files that must be read.
func (f *Directory) scan() {
	f.rewatch()
	paths, err := f.list()
	f.scanned = true
	if err != nil { // unreadable is not empty: the last good versions stay
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

// rewatch watches the directory and its parent, where it would be created. Without inotify, rescans
// detect changes.
func (f *Directory) rewatch() {
	if f.watch == nil {
		return
	}
	for _, dir := range []string{filepath.Dir(f.opt.Path), f.opt.Path} {
		err := f.watch.add(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			f.opt.Log.Warn("inotify watch failed, manifest directory is polled", "path", dir,
				"interval", f.opt.RescanInterval, "err", err)
		}
	}
}

// list returns the sorted paths of the files of this source. A missing directory is empty.
func (f *Directory) list() ([]string, error) {
	st, err := os.Stat(f.opt.Path)
	if was := f.absent; errors.Is(err, fs.ErrNotExist) {
		if f.absent = true; !was {
			f.opt.Log.Info("manifest directory does not exist", "path", f.opt.Path)
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
	paths, unread, err := listManifests(f.opt.Path)
	if err != nil {
		return nil, err
	}
	f.reportIgnored(unread)
	return paths, nil
}

func (f *Directory) recordDirectoryError(err error) {
	text := errorText(err)
	if f.dirError != nil && f.dirError.Message == text {
		return
	}
	f.dirError = &FileError{Path: f.opt.Path, Message: text, Since: f.opt.Now(), LastGoodKept: len(f.files) > 0}
	f.changed = true
	f.opt.Log.Error("manifest directory unreadable, last good versions stay", "path", f.opt.Path, "err", text)
}

// errorText returns an error without its path, which is reported separately.
func errorText(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Op + ": " + e.Err.Error()
	}
	return err.Error()
}

// ignoredName reports whether a file is skipped silently because of its name: hidden, or left by an
// editor or a package manager.
func ignoredName(name string) bool {
	ext := filepath.Ext(name)
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasPrefix(name, "~") ||
		strings.HasSuffix(name, "~") ||
		ext == ".swp" || ext == ".bak" ||
		strings.HasPrefix(ext, ".dpkg-")
}

// manifestName reports whether a file of that name is read.
func manifestName(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json", ".manifest":
		return !ignoredName(name)
	}
	return false
}

// reportIgnored logs each file once that is not read because of its name. A kubelet reads all files
// that are not hidden, and a pod may be missed.
func (f *Directory) reportIgnored(names []string) {
	newlyIgnored := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return f.ignored[name] })
	f.ignored = make(map[string]bool, len(names))
	for _, name := range names {
		f.ignored[name] = true
	}
	if n := len(newlyIgnored); n > 0 {
		const most = 10
		f.opt.Log.Warn("files ignored because of their names, manifests end in .yaml, .yml, .json or .manifest",
			"path", f.opt.Path, "files", n, "names", strings.Join(newlyIgnored[:min(n, most)], ", "))
	}
}
