package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// fileEvent is one inotify event.
type fileEvent struct {
	dir  string // the watched directory, as given
	name string // name in dir; empty: the directory itself
	mask uint32
}

// watchMask is the set of watched events. CLOSE_WRITE reports that a write is complete. Portable
// watchers do not report it.
const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
	unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// inotify watches directories. read runs on its own goroutine, everything else on the owner's.
type inotify struct {
	file *os.File // non-blocking, so that close ends a read
	byWD map[int]string
	wds  map[string]int
}

func newInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	return &inotify{file: os.NewFile(uintptr(fd), "inotify"), byWD: map[int]string{}, wds: map[string]int{}}, nil
}

// add watches a directory. Watching it again is not an error. A directory that replaced another one
// under the same path is watched instead.
func (w *inotify) add(dir string) error {
	var wd int
	err := w.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, dir, watchMask)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	if old, ok := w.wds[dir]; ok && old != wd {
		w.drop(old)
	}
	w.wds[dir], w.byWD[wd] = wd, dir
	return nil
}

func (w *inotify) drop(wd int) {
	if dir, ok := w.byWD[wd]; ok {
		delete(w.byWD, wd)
		if w.wds[dir] == wd {
			delete(w.wds, dir)
		}
	}
	// The kernel removes the watch of a deleted directory itself.
	_ = w.control(func(fd int) error { _, err := unix.InotifyRmWatch(fd, uint32(wd)); return err })
}

func (w *inotify) control(f func(fd int) error) error {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// rawEvent is an event with an unresolved watch descriptor.
type rawEvent struct {
	wd   int
	mask uint32
	name string
}

// read sends batches of events until the file is closed or ctx ends.
func (w *inotify) read(ctx context.Context, out chan<- []rawEvent) {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		select {
		case out <- parseEvents(buf[:n]):
		case <-ctx.Done():
			return
		}
	}
}

func parseEvents(b []byte) []rawEvent {
	var out []rawEvent
	for len(b) >= unix.SizeofInotifyEvent {
		e := rawEvent{wd: int(int32(binary.NativeEndian.Uint32(b))), mask: binary.NativeEndian.Uint32(b[4:])}
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		e.name = strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		out = append(out, e)
		b = b[end:]
	}
	return out
}

// resolve returns the event with the path of its directory. It returns false if the watch was
// removed.
func (w *inotify) resolve(e rawEvent) (fileEvent, bool) {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		return fileEvent{mask: e.mask}, true
	}
	dir, ok := w.byWD[e.wd]
	if !ok {
		return fileEvent{}, false
	}
	if e.mask&unix.IN_IGNORED != 0 {
		delete(w.byWD, e.wd)
		if w.wds[dir] == e.wd {
			delete(w.wds, dir)
		}
	}
	return fileEvent{dir: dir, name: e.name, mask: e.mask}, true
}

func (w *inotify) close() error { return w.file.Close() }
