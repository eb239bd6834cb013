package exits

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options configures a Watcher.
type Options struct {
	// Process returns the PID of the init process of a running container on the host.
	Process func(ctx context.Context, id string) (pid int, err error)
	Log     *slog.Logger
}

// Watcher records how containers exit. It is safe for concurrent use.
type Watcher struct {
	opt  Options
	wake chan struct{} // capacity 1: the queue is not empty

	mu      sync.Mutex
	off     string // why the watcher is disabled; empty: enabled
	watched map[string]*handle
	by      map[int32]*handle // by token
	queue   []*handle
	last    int32 // token
	epoll   int
}

// handle is the handle of one container instance. A fd of -1 means that it is not open.
type handle struct {
	id    string
	since time.Time
	token int32
	fd    int
	at    time.Time // observed exit time; zero: running
	code  int32
	known bool // code is set
}

// New returns a Watcher. It only opens handles while Run is running.
func New(o Options) *Watcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{opt: o, wake: make(chan struct{}, 1), watched: map[string]*handle{}, by: map[int32]*handle{},
		epoll: -1}
}

// Watch starts to watch a running container. It never blocks, and has no effect on a container that
// is already watched.
func (e *Watcher) Watch(id string) {
	e.mu.Lock()
	if e.watched[id] != nil || e.off != "" {
		e.mu.Unlock()
		return
	}
	h := &handle{id: id, since: time.Now(), fd: -1}
	e.watched[id] = h
	e.queue = append(e.queue, h)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// ExitStatus returns how a container exited: its exit code as runtimes report it (128 plus the
// signal number after a signal) and the exit time, which is zero if the exit was not observed. ok
// reports whether the exit code is known.
func (e *Watcher) ExitStatus(id string) (code int32, at time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.watched[id]
	if h == nil {
		return 0, time.Time{}, false
	}
	e.readExitCode(h)
	return h.code, h.at, h.known
}

// Retain drops all containers except the given ones, which are all containers that existed at the
// given time.
func (e *Watcher) Retain(existing map[string]bool, asOf time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, h := range e.watched {
		if !existing[id] && h.since.Before(asOf) {
			e.drop(h)
		}
	}
}

// Run opens handles until ctx ends, and returns nil then.
func (e *Watcher) Run(ctx context.Context) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return errors.Join(err, unix.Close(epoll))
	}
	e.mu.Lock()
	e.epoll = epoll
	e.mu.Unlock()
	var listener sync.WaitGroup
	// Token 0 is the stop event.
	if err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
		listener.Go(func() { e.listen(epoll) })
		e.serve(ctx)
		_, err = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	listener.Wait()
	e.release("agent shutting down")
	return errors.Join(err, unix.Close(stop), unix.Close(epoll))
}

func (e *Watcher) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		e.mu.Lock()
		queue := e.queue
		e.queue = nil
		e.mu.Unlock()
		for _, h := range queue {
			if err := e.open(ctx, h); err != nil && ctx.Err() == nil {
				e.opt.Log.Debug("process handle not opened", "containerID", h.id, "err", err)
				e.mu.Lock()
				e.drop(h) // the next Watch tries again
				e.mu.Unlock()
			}
		}
	}
}

var errOther = errors.New("the process ID was reused")

// open opens the handle of the init process of a container, unless the process ID may have been
// reused.
func (e *Watcher) open(ctx context.Context, h *handle) error {
	pid, err := e.opt.Process(ctx, h.id)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	if !isOf(pid, h.id) {
		if again, err := e.opt.Process(ctx, h.id); err != nil || again != pid {
			return errors.Join(errOther, err, unix.Close(fd))
		}
	}
	if _, _, err := exitInfo(fd); errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		e.release("the kernel does not report exit codes by pidfd")
		return unix.Close(fd)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.off != "" || e.watched[h.id] != h {
		return unix.Close(fd)
	}
	e.last++
	h.token, h.fd = e.last, fd
	e.by[h.token] = h
	// Edge-triggered: one event for the exit, another one when the process is reaped.
	return unix.EpollCtl(
		e.epoll,
		unix.EPOLL_CTL_ADD,
		fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: h.token},
	)
}

// listen records exits until it is stopped.
func (e *Watcher) listen(epoll int) {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			e.release("epoll failed: " + err.Error())
			return
		}
		now := time.Now()
		e.mu.Lock()
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == 0 {
				e.mu.Unlock()
				return
			}
			if h := e.by[ev.Fd]; h != nil {
				if h.at.IsZero() {
					h.at = now
				}
				e.readExitCode(h)
			}
		}
		e.mu.Unlock()
	}
}

// readExitCode reads the exit code from the kernel. Once it is known, the handle is closed.
func (e *Watcher) readExitCode(h *handle) {
	if h.fd < 0 {
		return
	}
	status, known, err := exitInfo(h.fd)
	switch {
	case known:
		h.code, h.known = codeOf(status), true
		e.close(h)
	case err != nil: // reaped, and the kernel is too old
		e.close(h)
	}
}

func (e *Watcher) drop(h *handle) {
	e.close(h)
	if e.watched[h.id] == h {
		delete(e.watched, h.id)
	}
}

func (e *Watcher) close(h *handle) {
	if h.fd >= 0 {
		_ = unix.Close(h.fd) // read-only handle
		delete(e.by, h.token)
		h.fd = -1
	}
}

// release drops all containers and disables the watcher.
func (e *Watcher) release(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.off == "" {
		e.off = why
		e.opt.Log.Debug("container exit codes not watched", "reason", why)
	}
	for _, h := range e.watched {
		e.drop(h)
	}
	e.queue = nil
}
