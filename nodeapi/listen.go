package nodeapi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what fits into sockaddr_un beside its final NUL.
const maxSocketPath = 107

// Listen makes the local socket at path with mode 0600, and its directory where
// that is missing. A socket that an agent left behind is replaced. If somebody
// answers on it, or path is something else than a socket, it is left alone and
// the error says so. Closing the listener removes the socket.
func Listen(path string) (net.Listener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// Until here the mode is what the umask left; the peer check holds anyway.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), ln.Close())
	}
	return ln, nil
}

func checkSocketPath(path string) error {
	switch {
	case path == "":
		return errors.New("the path of the socket is empty")
	case len(path) > maxSocketPath:
		return fmt.Errorf("the path of the socket has %d bytes, at most %d are possible: %s", len(path), maxSocketPath, path)
	}
	return nil
}

// lockDir keeps two agents that start at once from both finding the same stale
// socket and the later one from removing the living socket of the earlier.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	for {
		err = unix.Flock(int(d.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return func() { _ = d.Close() }, nil
}

// removeStale removes the socket at path if nobody answers on it.
func removeStale(path string) error {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket: %s exists and is no socket: remove it or choose another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second) //nolint:noctx // at start, and bounded
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("socket: another berth answers on %s: only one agent may run", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket: is the owner of %s alive? %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove a socket left behind: %w", err)
	}
	return nil
}
