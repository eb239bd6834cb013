package systemd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// socketsVariable holds the descriptors of the sockets that a process hands to the program that
// replaces it.
const socketsVariable = "BERTH_SOCKETS"

// Sockets keeps sockets open while the program restarts, so that what arrives meanwhile waits in them.
// The service manager holds descriptors over a restart of the service (FileDescriptorStoreMax), and the
// process itself over a replacement of its program. It is safe for concurrent use.
type Sockets struct {
	name string // of the descriptors, for the service manager

	mu    sync.Mutex
	files []*os.File
}

// InheritSockets returns the sockets of an earlier process. name identifies them to the service manager.
func InheritSockets(name string) *Sockets {
	s := &Sockets{name: name}
	for other, files := range InheritedFiles() {
		if other == name {
			s.files = files
		} else {
			closeAll(files) // of another feature or release
		}
	}
	for text := range strings.FieldsSeq(os.Getenv(socketsVariable)) {
		fd, err := strconv.Atoi(text)
		if err != nil || fd <= 2 {
			continue
		}
		unix.CloseOnExec(fd)
		s.files = append(s.files, os.NewFile(uintptr(fd), name))
	}
	if err := os.Unsetenv(socketsVariable); err != nil {
		panic(err) // the name is valid
	}
	return s
}

// Files returns new descriptors of all sockets. The caller closes them.
func (s *Sockets) Files() []*os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := duplicate(s.files)
	if err != nil {
		return nil // out of descriptors: new sockets are opened
	}
	return out
}

// Keep replaces the sockets by duplicates of the given ones, also at the service manager. No files end
// the keeping. If the sockets are the same, the service manager has them at all times, also if the process
// is killed during the call.
func (s *Sockets) Keep(files []*os.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := duplicate(files)
	if err != nil {
		return err
	}
	same, err := sameSockets(s.files, next)
	if err != nil {
		closeAll(next)
		return err
	}
	if len(next)+len(s.files) == 0 {
		return nil
	}
	closeAll(s.files)
	s.files = next
	manager := Notifier{os.Getenv("NOTIFY_SOCKET")}
	if same { // stored again, because an earlier process may have been killed before it stored them
		return manager.StoreFiles(s.name, next...)
	}
	return errors.Join(manager.RemoveFiles(s.name), manager.StoreFiles(s.name, next...))
}

// sameSockets reports whether two lists have the same sockets.
func sameSockets(a, b []*os.File) (bool, error) {
	inodes := func(files []*os.File) (map[uint64]bool, error) {
		out := map[uint64]bool{}
		for _, f := range files {
			err := control(f, func(fd int) error {
				var st unix.Stat_t
				err := unix.Fstat(fd, &st)
				out[st.Ino] = true
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("compare sockets: %w", err)
			}
		}
		return out, nil
	}
	first, err := inodes(a)
	second, err2 := inodes(b)
	return maps.Equal(first, second), errors.Join(err, err2)
}

// PassOn prepares the sockets for a program that replaces this one in the same process.
func (s *Sockets) PassOn() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, f := range s.files {
		err := control(f, func(fd int) error {
			list = append(list, strconv.Itoa(fd))
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
			return err
		})
		if err != nil {
			return fmt.Errorf("pass on sockets: %w", err)
		}
	}
	return os.Setenv(socketsVariable, strings.Join(list, " "))
}

// control calls f with the descriptor of a file. File.Fd would make it blocking, and with it all
// descriptors of the socket.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = f(int(fd)) })
	return errors.Join(err, inner)
}

// duplicate returns new descriptors of files, which are closed when the program is replaced.
func duplicate(files []*os.File) (out []*os.File, err error) {
	for _, f := range files {
		err := control(f, func(fd int) error {
			dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
			if err == nil {
				out = append(out, os.NewFile(uintptr(dup), f.Name()))
			}
			return err
		})
		if err != nil {
			closeAll(out)
			return nil, fmt.Errorf("duplicate a socket: %w", err)
		}
	}
	return out, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // other descriptors of the socket decide about it
	}
}
