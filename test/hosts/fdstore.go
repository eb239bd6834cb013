package hosts

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// fdStore is the file descriptor store of a service manager for an agent: it holds the sockets that the agent sends
// to it, and passes them to the next process. It follows sd_notify(3) and sd_listen_fds(3).
type fdStore struct {
	conn *net.UnixConn
	done chan struct{}

	mu    sync.Mutex
	files []storedFile
}

type storedFile struct {
	name  string
	inode uint64
	file  *os.File
}

// openFDStore listens on a socket.
func openFDStore(path string) (*fdStore, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("file descriptor store: %w", err)
	}
	s := &fdStore{conn: conn, done: make(chan struct{})}
	go s.run()
	return s, nil
}

// run receives messages until the socket is closed.
func (s *fdStore) run() {
	defer close(s.done)
	text, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*64))
	for {
		n, oob, _, _, err := s.conn.ReadMsgUnix(text, rights)
		if err != nil {
			return
		}
		s.receive(string(text[:n]), rights[:oob])
	}
}

func (s *fdStore) receive(text string, rights []byte) {
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(rights); err == nil {
		for i := range messages {
			more, err := unix.ParseUnixRights(&messages[i])
			if err == nil {
				fds = append(fds, more...)
			}
		}
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		fields[key] = value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fields["FDNAME"]
	if fields["FDSTOREREMOVE"] == "1" {
		s.remove(func(f storedFile) bool { return f.name == name })
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		f := storedFile{name, st.Ino, os.NewFile(uintptr(fd), name)}
		if err != nil || fields["FDSTORE"] != "1" || s.has(f) {
			_ = f.file.Close()
			continue
		}
		s.files = append(s.files, f)
	}
}

func (s *fdStore) has(f storedFile) bool {
	return slices.ContainsFunc(s.files, func(other storedFile) bool { return other.inode == f.inode })
}

// remove closes the files for which the function returns true.
func (s *fdStore) remove(which func(storedFile) bool) {
	s.files = slices.DeleteFunc(s.files, func(f storedFile) bool {
		if !which(f) {
			return false
		}
		_ = f.file.Close()
		return true
	})
}

// pass returns the files for the next process and the environment that describes them. The process sets LISTEN_PID
// itself.
func (s *fdStore) pass() (files []*os.File, env []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, f := range s.files {
		files, names = append(files, f.file), append(names, f.name)
	}
	env = []string{"NOTIFY_SOCKET=" + s.conn.LocalAddr().String()}
	if len(files) > 0 {
		env = append(env, "LISTEN_FDS="+strconv.Itoa(len(files)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	return files, env
}

// close closes the store and all its files.
func (s *fdStore) close() error {
	err := s.conn.Close()
	<-s.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(func(storedFile) bool { return true })
	return err
}
