package crilog

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// InotifyWatcher is a GrowthWatcher that uses inotify. Files that do not grow cost nothing, and a
// file that grows fast costs no more than one that grows slowly.
type InotifyWatcher struct {
	file  *os.File // the inotify instance
	grown chan string
	done  chan struct{}
	wg    sync.WaitGroup

	mu    sync.Mutex
	paths map[int32]string // by watch descriptor
	ids   map[string]int32
}

// NewInotifyWatcher returns an InotifyWatcher without watches. The caller must close it.
func NewInotifyWatcher() (*InotifyWatcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch logs: %w", err)
	}
	g := &InotifyWatcher{
		file: os.NewFile(uintptr(fd), "inotify"), grown: make(chan string), done: make(chan struct{}),
		paths: map[int32]string{}, ids: map[string]int32{},
	}
	g.wg.Go(g.read)
	return g, nil
}

// Grown returns the paths of files that have grown or were deleted.
func (g *InotifyWatcher) Grown() <-chan string { return g.grown }

// Arm requests one notification when the file grows.
func (g *InotifyWatcher) Arm(path string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	conn, err := g.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	var id int
	errConn := conn.Control(func(fd uintptr) {
		id, err = unix.InotifyAddWatch(int(fd), path, unix.IN_MODIFY|unix.IN_ONESHOT)
	})
	if errConn != nil {
		err = errConn
	}
	if err != nil {
		return fmt.Errorf("watch log: %w", err)
	}
	g.paths[int32(id)], g.ids[path] = path, int32(id)
	return nil
}

// Disarm cancels the notification of a file.
func (g *InotifyWatcher) Disarm(path string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id, ok := g.ids[path]
	if !ok {
		return
	}
	delete(g.ids, path)
	delete(g.paths, id)
	if conn, err := g.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { // the watch may have been removed with its file
			_, _ = unix.InotifyRmWatch(int(fd), uint32(id))
		})
	}
}

// Close stops the watcher and waits for its goroutine.
func (g *InotifyWatcher) Close() {
	close(g.done)
	_ = g.file.Close()
	g.wg.Wait()
}

// read delivers notifications until the inotify instance is closed.
func (g *InotifyWatcher) read() {
	buf := make([]byte, 4<<10)
	for {
		n, err := g.file.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			id := int32(binary.NativeEndian.Uint32(b))
			if path, ok := g.takeWatch(id); ok {
				select {
				case g.grown <- path:
				case <-g.done:
					return
				}
			}
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			b = b[min(size, len(b)):]
		}
	}
}

// takeWatch removes a watch that has fired and returns its path.
func (g *InotifyWatcher) takeWatch(id int32) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	path, ok := g.paths[id]
	if ok {
		delete(g.paths, id)
		if g.ids[path] == id {
			delete(g.ids, path)
		}
	}
	return path, ok
}
