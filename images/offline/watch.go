package offline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// watchMask is the set of events of the directory watch. CLOSE_WRITE, which portable watchers do
// not report, shows that a file is complete.
const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
	unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ONLYDIR

// change is an event of a file in the directory. Without a name, it is about the directory itself
// or an overflow.
type change struct {
	name string
	mask uint32
}

// watch sends events of a directory until stop is called. It ends by itself when the directory is
// deleted, after an event without a name.
func watch(ctx context.Context, dir string, changes chan<- change) (stop func(), err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("start inotify: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify") // non-blocking, so that Close interrupts a read
	if _, err := unix.InotifyAddWatch(fd, dir, watchMask); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", dir, err), f.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 16<<10)
		for {
			n, err := f.Read(buf)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n <= 0 {
				return
			}
			for _, c := range parseEvents(buf[:n]) {
				select {
				case changes <- c:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return func() {
		cancel()
		_ = f.Close() // it is only read
		<-ended
	}, nil
}

func parseEvents(b []byte) (out []change) {
	for len(b) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if end > len(b) {
			break
		}
		out = append(out, change{strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00"),
			binary.NativeEndian.Uint32(b[4:])})
		b = b[end:]
	}
	return out
}
