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

// file is what Run knows of one archive.
//
//	        ┌──────────── written to ───────────┐
//	open ──closed──► due ──► busy ──► settled ──┘   settled: imported or broken
//	                  ▲        └─ what is not the file's fault ─► due, after a while
type file struct {
	stamp stamp
	open  bool // somebody writes
	busy  bool // it is being read
	state State
	why   string
	said  string    // of a failure that was told
	tried stamp     // of its last turn
	until time.Time // no other turn before, unless the file changes
	fails int       // turns in a row that failed for what is neither the file's fault nor the runtime's
}

// folder is Run's own.
type folder struct {
	*Importer
	files   map[string]*file
	records map[string]entry
	ended   chan outcome
	work    sync.WaitGroup
	slots   chan struct{}
	soon    time.Time // when a file may have become quiet; zero: none is awaited
}

// outcome is the end of one file's turn.
type outcome struct {
	name  string
	entry entry
	fresh bool // something was imported
	err   error
}

// Run imports what is in the folder and what comes into it, until ctx ends.
func (i *Importer) Run(ctx context.Context) {
	f := &folder{Importer: i, files: map[string]*file{}, ended: make(chan outcome), slots: make(chan struct{}, i.o.Parallel)}
	defer f.work.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var err error
	if f.records, err = loadRecords(i.o.Records); err != nil {
		i.o.Log.Warn("images are looked for again", "err", err)
	}
	changes := make(chan change)
	unwatch := func() {}
	defer func() { unwatch() }()
	watching, complained := false, ""
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			if c.mask&unix.IN_IGNORED != 0 {
				watching = false
			} else if !f.changed(c) {
				continue
			}
		case o := <-f.ended:
			f.settle(o)
		case <-look.C:
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
			i.o.Log.Warn("folder of images", "err", err)
		}
		complained, err = fmt.Sprint(err), nil
		wait := i.o.Interval
		if !f.soon.IsZero() {
			wait = min(wait, max(time.Until(f.soon), 10*time.Millisecond))
		}
		look.Reset(wait)
	}
}

// changed takes in what the watch told, and reports whether to look at the folder.
func (f *folder) changed(c change) bool {
	switch {
	case c.mask&unix.IN_Q_OVERFLOW != 0:
		for _, x := range f.files { // whoever writes is known by the file's age
			x.open = false
		}
	case c.name != "" && candidate(c.name):
		x := f.file(c.name)
		switch {
		case c.mask&unix.IN_MODIFY != 0:
			x.open = true
			return false // it is being written: that may go on for long
		case c.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO) != 0:
			x.open = false
			x.stamp = stamp{} // whole, however young
			if s, err := look(filepath.Join(f.o.Dir, c.name)); err == nil {
				x.stamp = s
			}
		}
	}
	return true
}

func (f *folder) file(name string) *file {
	x, ok := f.files[name]
	if !ok {
		x = &file{state: StateWaiting}
		f.files[name] = x
	}
	return x
}

// candidate reports whether a file of that name is an archive.
func candidate(name string) bool {
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

func look(path string) (stamp, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	if !fi.Mode().IsRegular() {
		return stamp{}, fmt.Errorf("%s is no file", path)
	}
	s := stamp{Size: fi.Size(), Mtime: fi.ModTime().UTC()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.Inode = st.Ino
	}
	return s, nil
}

// scan looks at the folder and gives every file that is whole its turn.
func (f *folder) scan(ctx context.Context) error {
	listed, err := os.ReadDir(f.o.Dir)
	if err != nil {
		return err
	}
	f.soon = time.Time{}
	there := map[string]bool{}
	for _, e := range listed {
		if !candidate(e.Name()) {
			continue
		}
		s, err := look(filepath.Join(f.o.Dir, e.Name()))
		if err != nil {
			continue // gone, or no file
		}
		there[e.Name()] = true
		f.consider(ctx, e.Name(), s)
	}
	changed := false
	for name, x := range f.files {
		if !there[name] && !x.busy {
			delete(f.files, name)
		}
	}
	for name := range f.records {
		if !there[name] { // its images are as any others now
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

// consider gives a file its turn if it is due.
func (f *folder) consider(ctx context.Context, name string, s stamp) {
	x := f.file(name)
	known := x.stamp.same(s) // seen like that before, or told to be whole
	x.stamp = s
	if x.busy || x.open || s.Size == 0 {
		return
	}
	if x.tried.same(s) && (x.state == StateBroken || time.Now().Before(x.until)) {
		if x.state != StateBroken {
			f.lookAt(x.until)
		}
		return
	}
	switch age := time.Since(s.Mtime); {
	case !known && age < quiet && age > -quiet && !f.records[name].Stamp.same(s):
		x.state = StateWaiting
		f.lookAt(time.Now().Add(quiet - max(age, 0)))
		x.stamp = stamp{} // to be older when it is seen again
		return
	}
	if !x.tried.same(s) {
		x.fails = 0
	}
	x.busy, x.tried = true, s
	if x.state != StateImported {
		x.state = StateWaiting
	}
	was, sizes := f.records[name], f.bySize(s.Size)
	f.work.Go(func() {
		o := outcome{name: name}
		select {
		case f.slots <- struct{}{}:
			o.entry, o.fresh, o.err = f.turn(ctx, name, s, was, sizes)
			<-f.slots
		case <-ctx.Done():
			return
		}
		select {
		case f.ended <- o:
		case <-ctx.Done():
		}
	})
}

// lookAt has the folder looked at by then.
func (f *folder) lookAt(t time.Time) {
	if f.soon.IsZero() || t.Before(f.soon) {
		f.soon = t
	}
}

// bySize are the records of files that might have the same content.
func (f *folder) bySize(size int64) (out []entry) {
	for _, name := range slices.Sorted(maps.Keys(f.records)) {
		if e := f.records[name]; e.Stamp.Size == size {
			out = append(out, e)
		}
	}
	return out
}

// settle takes in the end of a turn.
func (f *folder) settle(o outcome) {
	x := f.file(o.name)
	x.busy = false
	path := filepath.Join(f.o.Dir, o.name)
	if o.err != nil {
		x.state, x.why = StateWaiting, o.err.Error()
		if errors.Is(o.err, errChanged) || errors.Is(o.err, os.ErrNotExist) {
			x.tried = stamp{} // it has another turn at once, or goes
			return
		}
		if f.o.IsTransient != nil && f.o.IsTransient(o.err) {
			x.until = time.Now().Add(later)
			return
		}
		told := o.err
		if faulty(o.err) {
			x.state = StateBroken
		} else {
			x.until = time.Now().Add(wait(x.fails))
			x.fails++
			told = fmt.Errorf("%w; it is tried again", o.err)
		}
		if x.said != x.why {
			x.said = x.why
			f.o.OnFailed(path, told)
		}
		return
	}
	x.state, x.why, x.said, x.until, x.fails = StateImported, "", "", time.Now().Add(f.o.Interval), 0
	if old, ok := f.records[o.name]; !ok || !old.Stamp.same(o.entry.Stamp) || !slices.Equal(old.Images, o.entry.Images) {
		f.records[o.name] = o.entry
		f.save()
	}
	f.publish() // before anybody is told: it is pinned by then
	if o.fresh {
		f.o.OnImported(path, o.entry.Images)
	}
}

// wait is how long a file waits that has failed so often before.
func wait(fails int) time.Duration { return min(later<<min(fails, 10), laterMost) }

func (f *folder) save() {
	if err := saveRecords(f.o.Records, f.records); err != nil {
		f.o.Log.Warn("archives will be read again after a restart", "err", err)
	}
}

// publish shows the files as they are.
func (f *folder) publish() {
	var show []File
	for name, x := range f.files {
		state := x.state
		if x.busy && state != StateImported {
			state = StateImporting
		}
		show = append(show, File{Path: filepath.Join(f.o.Dir, name), State: state, Images: f.records[name].Images, Message: x.why})
	}
	slices.SortFunc(show, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	f.mu.Lock()
	f.show = show
	f.mu.Unlock()
}
