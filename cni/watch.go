package cni

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	settleDelay  = 50 * time.Millisecond // a file is written in several steps
	pollInterval = 5 * time.Second       // if the kernel provides no watch
)

// Run calls changed, on its own goroutine, whenever the result of Ready changes. It returns nil
// when ctx ends and never another error. If no inotify watch is available, it polls every few
// seconds.
func (n *Network) Run(ctx context.Context, changed func()) error {
	var events <-chan fsnotify.Event
	var errs <-chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		events, errs = w.Events, w.Errors
	}
	n.running.Add(1)
	defer n.running.Add(-1)
	for {
		var tick <-chan time.Time
		if w == nil || !n.watch(w) {
			tick = time.After(pollInterval)
		}
		if n.refresh() { // after the watch started, so that no change is missed
			changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		case <-events:
		case <-errs: //nolint:errcheck // any error means lost events
		}
		if !drainEvents(ctx, events, errs) {
			return nil
		}
	}
}

// drainEvents waits until a burst of events is over. It returns false if ctx has ended.
func drainEvents(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) bool {
	settled := time.After(settleDelay)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-settled:
			return true
		case <-events:
		case <-errs: //nolint:errcheck // the next refresh makes up for it
		}
	}
}

// watch watches every relevant directory, or the nearest existing parent of a directory that does
// not exist. It reports whether all watches were added.
func (n *Network) watch(w *fsnotify.Watcher) bool {
	for range 10 { // directories may appear meanwhile
		var want []string
		for _, dir := range append([]string{n.opts.ConfDir}, n.opts.BinDirs...) {
			want = append(want, nearestExisting(dir))
		}
		for _, dir := range w.WatchList() {
			if !slices.Contains(want, dir) {
				_ = w.Remove(dir) // the watch may already be gone
			}
		}
		ok := true
		for _, dir := range want {
			ok = w.Add(dir) == nil && ok
		}
		same := true
		for i, dir := range append([]string{n.opts.ConfDir}, n.opts.BinDirs...) {
			same = same && nearestExisting(dir) == want[i]
		}
		if ok && same {
			return true
		}
	}
	return false
}

// nearestExisting returns the directory itself or its nearest existing parent.
func nearestExisting(dir string) string {
	dir = filepath.Clean(dir)
	for {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			return dir
		}
		dir = above
	}
}
