package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// archiveState is the state of one archive in Run.
//
//	             ┌────────────────── written to ─────────────────┐
//	beingWritten ──closed──► due ──► importing ──► settled ──────┘   settled: imported or broken
//	                          ▲          └─ not the archive's fault ─► due, after a delay
type archiveState struct {
	stamp        fileStamp
	beingWritten bool // it is open for writing
	importing    bool // it is being read
	state        State
	message      string
	reported     string    // last reported failure
	lastTried    fileStamp // version at the last import
	retryAt      time.Time // no retry before this time, unless the archive changes
	failures     int       // consecutive failures that neither the archive nor the runtime caused
}

// importRun is the state of Run.
type importRun struct {
	*Importer
	files      map[string]*archiveState
	records    map[string]entry
	results    chan importResult
	goroutines sync.WaitGroup
	slots      chan struct{}
	nextScan   time.Time // when an archive may be complete; zero: none is pending
}

// importResult is the result of importing one archive.
type importResult struct {
	name     string
	entry    entry
	imported bool // new images were imported
	err      error
}

// Run imports the archives in the directory, and those that are added, until ctx ends.
func (i *Importer) Run(ctx context.Context) {
	f := &importRun{Importer: i, files: map[string]*archiveState{}, results: make(chan importResult),
		slots: make(chan struct{}, i.o.Parallel)}
	defer f.goroutines.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	if f.records, err = loadRecords(i.o.Records); err != nil {
		i.o.Log.Warn("import records unreadable, archives are read again", "err", err)
	}
	changes := make(chan change)
	unwatch := func() {}
	defer func() { unwatch() }()
	watching, complained := false, ""
	scanTimer := time.NewTimer(0)
	defer scanTimer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			if c.mask&unix.IN_IGNORED != 0 {
				watching = false
			} else if !f.handleChange(c) {
				continue
			}
		case o := <-f.results:
			f.handleResult(o)
		case <-scanTimer.C:
		}
		if !watching {
			unwatch()
			unwatch = func() {}
			if err = os.MkdirAll(i.o.Dir, 0o755); err == nil {
				var end func()
				if end, err = watch(ctx, i.o.Dir, changes); err == nil {
					unwatch, watching = end, true
				}
			}
		}
		if err == nil {
			err = f.scan(ctx)
		}
		if err != nil && err.Error() != complained {
			i.o.Log.Warn("image archive directory unavailable", "err", err)
		}
		complained, err = fmt.Sprint(err), nil
		wait := i.o.Interval
		if !f.nextScan.IsZero() {
			wait = min(wait, max(time.Until(f.nextScan), 10*time.Millisecond))
		}
		scanTimer.Reset(wait)
	}
}

// handleChange handles an event of the watch, and reports whether to scan the directory.
func (f *importRun) handleChange(c change) bool {
	switch {
	case c.mask&unix.IN_Q_OVERFLOW != 0:
		for _, x := range f.files { // fall back to the age of the file
			x.beingWritten = false
		}
	case c.name != "" && isArchiveName(c.name):
		x := f.file(c.name)
		switch {
		case c.mask&unix.IN_MODIFY != 0:
			x.beingWritten = true
			return false // writing may take long
		case c.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO) != 0:
			x.beingWritten = false
			x.stamp = fileStamp{} // complete, regardless of its age
			if s, err := statFile(filepath.Join(f.o.Dir, c.name)); err == nil {
				x.stamp = s
			}
		}
	}
	return true
}

func (f *importRun) file(name string) *archiveState {
	x, ok := f.files[name]
	if !ok {
		x = &archiveState{state: StateWaiting}
		f.files[name] = x
	}
	return x
}

// isArchiveName reports whether a file with that name is an archive.
func isArchiveName(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	for _, end := range [...]string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}

func statFile(path string) (fileStamp, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return fileStamp{}, err
	}
	if !fi.Mode().IsRegular() {
		return fileStamp{}, fmt.Errorf("%s is not a regular file", path)
	}
	s := fileStamp{Size: fi.Size(), Mtime: fi.ModTime().UTC()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.Inode = st.Ino
	}
	return s, nil
}

// scan lists the directory and schedules every complete archive.
func (f *importRun) scan(ctx context.Context) error {
	listed, err := os.ReadDir(f.o.Dir)
	if err != nil {
		return err
	}
	f.nextScan = time.Time{}
	existing := map[string]bool{}
	for _, e := range listed {
		if !isArchiveName(e.Name()) {
			continue
		}
		s, err := statFile(filepath.Join(f.o.Dir, e.Name()))
		if err != nil {
			continue // deleted, or not a regular file
		}
		existing[e.Name()] = true
		f.schedule(ctx, e.Name(), s)
	}
	changed := false
	for name, x := range f.files {
		if !existing[name] && !x.importing {
			delete(f.files, name)
		}
	}
	for name := range f.records {
		if !existing[name] { // its images are not pinned any more
			delete(f.records, name)
			changed = true
		}
	}
	if changed {
		f.save()
	}
	f.publish()
	return nil
}

// schedule starts the import of an archive if it is due.
func (f *importRun) schedule(ctx context.Context, name string, s fileStamp) {
	x := f.file(name)
	known := x.stamp.same(s) // unchanged since the last scan, or closed by its writer
	x.stamp = s
	if x.importing || x.beingWritten || s.Size == 0 {
		return
	}
	if x.lastTried.same(s) && (x.state == StateBroken || time.Now().Before(x.retryAt)) {
		if x.state != StateBroken {
			f.scanBy(x.retryAt)
		}
		return
	}
	switch age := time.Since(s.Mtime); {
	case !known && age < settleTime && age > -settleTime && !f.records[name].Stamp.same(s):
		x.state = StateWaiting
		f.scanBy(time.Now().Add(settleTime - max(age, 0)))
		x.stamp = fileStamp{} // check the age again in the next scan
		return
	}
	if !x.lastTried.same(s) {
		x.failures = 0
	}
	x.importing, x.lastTried = true, s
	if x.state != StateImported {
		x.state = StateWaiting
	}
	was, sizes := f.records[name], f.bySize(s.Size)
	f.goroutines.Go(func() {
		o := importResult{name: name}
		select {
		case f.slots <- struct{}{}:
			o.entry, o.imported, o.err = f.importFile(ctx, name, s, was, sizes)
			<-f.slots
		case <-ctx.Done():
			return
		}
		select {
		case f.results <- o:
		case <-ctx.Done():
		}
	})
}

// scanBy requests a scan at that time or earlier.
func (f *importRun) scanBy(t time.Time) {
	if f.nextScan.IsZero() || t.Before(f.nextScan) {
		f.nextScan = t
	}
}

// bySize returns the records of archives that may have the same content.
func (f *importRun) bySize(size int64) (out []entry) {
	for _, name := range slices.Sorted(maps.Keys(f.records)) {
		if e := f.records[name]; e.Stamp.Size == size {
			out = append(out, e)
		}
	}
	return out
}

// handleResult handles the end of an import.
func (f *importRun) handleResult(o importResult) {
	x := f.file(o.name)
	x.importing = false
	path := filepath.Join(f.o.Dir, o.name)
	if o.err != nil {
		x.state, x.message = StateWaiting, o.err.Error()
		if errors.Is(o.err, errChanged) || errors.Is(o.err, os.ErrNotExist) {
			x.lastTried = fileStamp{} // retry immediately, or the file was deleted
			return
		}
		if f.o.IsTransient != nil && f.o.IsTransient(o.err) {
			x.retryAt = time.Now().Add(retryInterval)
			return
		}
		reported := o.err
		if isArchiveFault(o.err) {
			x.state = StateBroken
		} else {
			x.retryAt = time.Now().Add(retryDelay(x.failures))
			x.failures++
			reported = fmt.Errorf("%w; the import is retried", o.err)
		}
		if x.reported != x.message {
			x.reported = x.message
			f.o.OnFailed(path, reported)
		}
		return
	}
	x.state, x.message, x.reported, x.retryAt, x.failures = StateImported, "", "", time.Now().Add(f.o.Interval), 0
	if old, ok := f.records[o.name]; !ok || !old.Stamp.same(o.entry.Stamp) ||
		!slices.Equal(old.Images, o.entry.Images) {
		f.records[o.name] = o.entry
		f.save()
	}
	f.publish() // before OnImported, so that the images are pinned by then
	if o.imported {
		for _, img := range o.entry.Images {
			f.o.Log.Info("image imported", "path", path, "image", img.Name, "imageID", img.ID)
		}
		f.o.OnImported(path, o.entry.Images)
	}
}

// retryDelay returns the delay after the given number of earlier failures.
func retryDelay(fails int) time.Duration { return min(retryInterval<<min(fails, 10), maxRetryInterval) }

func (f *importRun) save() {
	if err := saveRecords(f.o.Records, f.records); err != nil {
		f.o.Log.Warn("saving import records failed, archives are read again after a restart", "err", err)
	}
}

// publish updates the result of Files.
func (f *importRun) publish() {
	var show []File
	for name, x := range f.files {
		state := x.state
		if x.importing && state != StateImported {
			state = StateImporting
		}
		show = append(show, File{Path: filepath.Join(f.o.Dir, name), State: state, Images: f.records[name].Images,
			Message: x.message})
	}
	slices.SortFunc(show, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	f.mu.Lock()
	f.show = show
	f.mu.Unlock()
}
