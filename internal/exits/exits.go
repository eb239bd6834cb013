package exits

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options is what New needs.
type Options struct {
	// Process is the first process of a running container, by its number on the host.
	Process func(ctx context.Context, id string) (pid int, err error)
	Log     *slog.Logger
}

// Watcher sees how containers end. It is safe for concurrent use.
type Watcher struct {
	opt  Options
	wake chan struct{} // capacity 1: something is queued

	mu    sync.Mutex
	off   string // why nothing is held; empty: it can be
	held  map[string]*hold
	by    map[int32]*hold // by token
	queue []*hold
	last  int32 // token
	epoll int
}

// hold is one container instance. A fd of -1 is none, or none any more.
type hold struct {
	id    string
	since time.Time
	token int32
	fd    int
	at    time.Time // when it ended, as it was seen; zero: it runs
	code  int32
	known bool // code says how
}

// New returns Exits that know nothing. Before Run has begun and after it has
// ended they hold nothing.
func New(o Options) *Watcher {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{opt: o, wake: make(chan struct{}, 1), held: map[string]*hold{}, by: map[int32]*hold{}, epoll: -1}
}

// Watch says that a container runs: its end is to be seen. It never blocks, and
// does nothing for one that is held.
func (e *Watcher) Watch(id string) {
	e.mu.Lock()
	if e.held[id] != nil || e.off != "" {
		e.mu.Unlock()
		return
	}
	h := &hold{id: id, since: time.Now(), fd: -1}
	e.held[id] = h
	e.queue = append(e.queue, h)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// ExitStatus is how a container ended: its exit code as runtimes write it, 128 and the
// signal for one that was killed, and when; a zero time: nobody saw. Not ok: it
// is not known.
func (e *Watcher) ExitStatus(id string) (code int32, at time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.held[id]
	if h == nil {
		return 0, time.Time{}, false
	}
	e.look(h)
	return h.code, h.at, h.known
}

// Retain lets go of all containers but these, which are all that there were at
// that time.
func (e *Watcher) Retain(there map[string]bool, asOf time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, h := range e.held {
		if !there[id] && h.since.Before(asOf) {
			e.drop(h)
		}
	}
}

// Run holds what is to be held until ctx ends, which is no error.
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
	if err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil { // token 0
		listener.Go(func() { e.listen(epoll) })
		e.serve(ctx)
		_, err = unix.Write(stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	listener.Wait()
	e.release("the agent leaves")
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
				e.opt.Log.Debug("hold a container's process", "container", h.id, "err", err)
				e.mu.Lock()
				e.drop(h) // seen to run again, it is tried again
				e.mu.Unlock()
			}
		}
	}
}

var errOther = errors.New("its process is another by now")

// open opens the handle of a container's first process. A process that is not
// certain to be that one is not held.
func (e *Watcher) open(ctx context.Context, h *hold) error {
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
	if _, _, err := ask(fd); errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		e.release("this kernel does not tell how processes ended")
		return unix.Close(fd)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.off != "" || e.held[h.id] != h {
		return unix.Close(fd)
	}
	e.last++
	h.token, h.fd = e.last, fd
	e.by[h.token] = h
	// By edges: the end is told once, and once more when the process was reaped.
	return unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: h.token})
}

// listen notes the ends of what is held, until it is told to end.
func (e *Watcher) listen(epoll int) {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			e.release("the kernel tells no ends: " + err.Error())
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
				e.look(h)
			}
		}
		e.mu.Unlock()
	}
}

// look asks the kernel how a container ended. What has been told needs no handle
// any more.
func (e *Watcher) look(h *hold) {
	if h.fd < 0 {
		return
	}
	status, told, err := ask(h.fd)
	switch {
	case told:
		h.code, h.known = codeOf(status), true
		e.close(h)
	case err != nil: // reaped, and the kernel is too old to know
		e.close(h)
	}
}

func (e *Watcher) drop(h *hold) {
	e.close(h)
	if e.held[h.id] == h {
		delete(e.held, h.id)
	}
}

func (e *Watcher) close(h *hold) {
	if h.fd >= 0 {
		_ = unix.Close(h.fd) // only a handle
		delete(e.by, h.token)
		h.fd = -1
	}
}

// release lets go of everything, for good.
func (e *Watcher) release(why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.off == "" {
		e.off = why
		e.opt.Log.Debug("containers' processes are not held", "reason", why)
	}
	for _, h := range e.held {
		e.drop(h)
	}
	e.queue = nil
}
