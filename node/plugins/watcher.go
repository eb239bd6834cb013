package plugins

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
)

// Handler registers the plugins of one type.
type Handler interface {
	// Register makes a plugin available. The endpoint is the path of its socket. An error is sent to
	// the plugin and the registration is repeated.
	Register(ctx context.Context, name, endpoint string, versions []string) error
	// Deregister ends a registration. It does not block.
	Deregister(name, endpoint string)
}

// Types of plugins.
const (
	CSIPlugin    = "CSIPlugin"
	DevicePlugin = "DevicePlugin"
)

// Options configures a Watcher. Dir and Handlers are required.
type Options struct {
	Dir            string
	Handlers       map[string]Handler // by type
	RescanInterval time.Duration      // zero: 1 min
	RetryMin       time.Duration      // first delay after a failed registration; zero: 500 ms
	RetryMax       time.Duration      // zero: 2 min
	Log            *slog.Logger
}

// Watcher registers the plugins with a socket in a directory.
type Watcher struct {
	opt     Options
	changed chan struct{} // signals a change in the directory; capacity 1
	results chan result

	// Owned by Run.
	plugins map[string]*plugin // by path of the socket
	wg      sync.WaitGroup
}

// plugin is the plugin of one socket.
type plugin struct {
	state    pluginState
	failures int
	cancel   context.CancelFunc // of the registration in progress
	info     registration       // of a registered plugin
}

// result is the end of a registration.
type result struct {
	path string
	info registration
	err  error
}

// New returns a Watcher. Run starts it.
func New(o Options) *Watcher {
	o.RescanInterval = cmp.Or(o.RescanInterval, time.Minute)
	o.RetryMin, o.RetryMax = cmp.Or(o.RetryMin, 500*time.Millisecond), cmp.Or(o.RetryMax, 2*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{
		opt: o, changed: make(chan struct{}, 1), results: make(chan result), plugins: map[string]*plugin{},
	}
}

// Run registers plugins until ctx ends, and returns when all its goroutines have ended. Plugins stay
// registered with their handlers.
func (w *Watcher) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer w.wg.Wait()
	defer stop()
	watch := w.startWatch(ctx)
	defer func() { watch.close() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-timer.C:
		case r := <-w.results:
			w.registered(r)
		}
		if watch == nil {
			watch = w.startWatch(ctx)
		}
		sockets, err := w.scan(watch)
		if err != nil {
			if !failing {
				w.opt.Log.Error("plugin directory cannot be read; retrying", "path", w.opt.Dir, "err", err)
			}
			failing = true
			timer.Reset(w.opt.RetryMin * 10)
			continue
		}
		failing = false
		next := w.sync(ctx, sockets)
		timer.Reset(next)
	}
}

// startWatch starts inotify. Nil: it is not available, so only the interval finds changes.
func (w *Watcher) startWatch(ctx context.Context) *inotify {
	watch, err := newInotify()
	if err != nil {
		w.opt.Log.Warn("plugin directory is not watched", "path", w.opt.Dir, "err", err)
		return nil
	}
	w.wg.Go(func() { watch.read(ctx, w.changed) })
	return watch
}

// sync executes the next steps and returns when to scan again.
func (w *Watcher) sync(ctx context.Context, sockets map[string]socketID) time.Duration {
	now := time.Now()
	states := make(map[string]pluginState, len(w.plugins))
	for path, p := range w.plugins {
		states[path] = p.state
	}
	s := decide(sockets, states, now)
	for _, path := range s.Cancel {
		w.plugins[path].cancel()
	}
	for _, path := range s.Deregister {
		w.deregister(path)
	}
	for _, path := range s.Forget {
		delete(w.plugins, path)
	}
	for _, path := range s.Register {
		w.register(ctx, path, sockets[path])
	}
	if s.Next.IsZero() {
		return w.opt.RescanInterval
	}
	return min(w.opt.RescanInterval, max(0, s.Next.Sub(now)))
}

// register starts the registration of a plugin.
func (w *Watcher) register(ctx context.Context, path string, id socketID) {
	p := w.plugins[path]
	if p == nil || p.state.ID != id {
		p = &plugin{state: pluginState{ID: id}}
		w.plugins[path] = p
	}
	call, cancel := context.WithCancel(ctx)
	p.cancel, p.state.Busy = cancel, true
	w.wg.Go(func() {
		defer cancel()
		info, err := w.announce(call, path)
		select {
		case w.results <- result{path, info, err}:
		case <-ctx.Done():
		}
	})
}

// registered handles the end of a registration.
func (w *Watcher) registered(r result) {
	p := w.plugins[r.path]
	p.state.Busy = false
	attrs := []any{"path", r.path, "type", r.info.Type, "name", r.info.Name}
	if r.err == nil {
		p.state.Registered, p.info, p.failures = true, r.info, 0
		w.opt.Log.Info("plugin registered", append(attrs, "endpoint", r.info.Endpoint)...)
		return
	}
	delay := min(w.opt.RetryMin<<min(p.failures, 16), w.opt.RetryMax)
	p.failures++
	p.state.RetryAt = time.Now().Add(delay)
	if !errors.Is(r.err, context.Canceled) {
		w.opt.Log.Warn("plugin registration failed", append(attrs, "retryIn", delay, "err", r.err)...)
	}
}

// deregister ends the registration of a plugin.
func (w *Watcher) deregister(path string) {
	p := w.plugins[path]
	delete(w.plugins, path)
	w.opt.Handlers[p.info.Type].Deregister(p.info.Name, p.info.Endpoint)
	w.opt.Log.Info("plugin deregistered", "path", path, "type", p.info.Type, "name", p.info.Name)
}

// scan returns the sockets below the directory, which is created if it is missing, and watches its
// directories.
func (w *Watcher) scan(watch *inotify) (map[string]socketID, error) {
	if err := os.MkdirAll(w.opt.Dir, 0o755); err != nil {
		return nil, err
	}
	found := map[string]socketID{}
	err := filepath.WalkDir(w.opt.Dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil && path == w.opt.Dir:
			return err
		case err != nil:
			return nil //nolint:nilerr // a directory that cannot be read contains no plugins
		case e.IsDir():
			if err := watch.add(path); err != nil {
				w.opt.Log.Debug("plugin directory is not watched", "path", path, "err", err)
			}
		case e.Type()&fs.ModeSocket != 0 && !strings.HasPrefix(e.Name(), "."):
			var st unix.Stat_t
			if unix.Lstat(path, &st) == nil {
				found[path] = socketID{Inode: st.Ino, Mtime: st.Mtim.Nano()}
			}
		}
		return nil
	})
	return found, err
}
