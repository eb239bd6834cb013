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
	settle    = 50 * time.Millisecond // a file is written in several steps
	withoutIt = 5 * time.Second       // between looks where the kernel gives no watch
)

// Run calls changed, from its own goroutine, whenever Ready has another answer.
// It returns nil when ctx ends and no error else: where the host has no watches
// left it looks every few seconds instead.
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
			tick = time.After(withoutIt)
		}
		if n.look() { // after watching began: nothing falls in between
			changed()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		case <-events:
		case <-errs: //nolint:errcheck // whatever it is, events were lost
		}
		if !pause(ctx, events, errs) {
			return nil
		}
	}
}

// pause lets a burst of events pass; it reports whether to go on.
func pause(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) bool {
	over := time.After(settle)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-events:
		case <-errs: //nolint:errcheck // the look that follows makes up for it
		}
	}
}

// watch has the kernel tell of changes in every directory that counts, or, for
// one that does not exist, in the nearest above it. It reports whether that
// could be had.
func (n *Network) watch(w *fsnotify.Watcher) bool {
	for range 10 { // directories may come while they are being watched
		var want []string
		for _, dir := range append([]string{n.opts.ConfDir}, n.opts.BinDirs...) {
			want = append(want, nearest(dir))
		}
		for _, dir := range w.WatchList() {
			if !slices.Contains(want, dir) {
				_ = w.Remove(dir) // gone by itself
			}
		}
		ok := true
		for _, dir := range want {
			ok = w.Add(dir) == nil && ok
		}
		same := true
		for i, dir := range append([]string{n.opts.ConfDir}, n.opts.BinDirs...) {
			same = same && nearest(dir) == want[i]
		}
		if ok && same {
			return true
		}
	}
	return false
}

// nearest is the directory itself or the nearest above it that exists.
func nearest(dir string) string {
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
