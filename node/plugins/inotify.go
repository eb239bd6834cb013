package plugins

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// inotify signals that something in directories has changed. It does not say what, because the
// directories are small and read again. The methods of nil do nothing.
type inotify struct{ file *os.File }

func newInotify() (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	return &inotify{os.NewFile(uintptr(fd), "inotify")}, nil // non-blocking, so that close ends a read
}

// add watches a directory. Watching it again is not an error.
func (w *inotify) add(dir string) error {
	if w == nil {
		return nil
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		const mask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF |
			unix.IN_MOVE_SELF | unix.IN_ONLYDIR
		_, inner = unix.InotifyAddWatch(int(fd), dir, mask)
	})
	return errors.Join(err, inner)
}

// read signals changes until the file is closed or ctx ends.
func (w *inotify) read(ctx context.Context, changed chan<- struct{}) {
	buf := make([]byte, 4<<10)
	for ctx.Err() == nil {
		n, err := w.file.Read(buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

func (w *inotify) close() {
	if w != nil {
		_ = w.file.Close() // nothing is written
	}
}
