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

// maxSocketPath is the capacity of sockaddr_un without the terminating NUL.
const maxSocketPath = 107

// Listen creates the local socket at path with mode 0600, and its directory if that is missing. A
// stale socket is replaced. If another process listens on it, or path is not a socket, nothing is
// changed and an error is returned. Closing the listener removes the socket.
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
	// Up to this point the mode depends on the umask. The peer check does not.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), ln.Close())
	}
	return ln, nil
}

func checkSocketPath(path string) error {
	switch {
	case path == "":
		return errors.New("socket path is empty")
	case len(path) > maxSocketPath:
		return fmt.Errorf("socket path is too long: %d bytes, maximum %d: %s", len(path), maxSocketPath, path)
	}
	return nil
}

// lockDir prevents two agents that start at the same time from both detecting the same stale
// socket, so that the second one would remove the active socket of the first.
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

// removeStale removes the socket at path if no process listens on it.
func removeStale(path string) error {
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("socket: %s exists and is not a socket: remove it or choose another path", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second) //nolint:noctx // runs at startup with a timeout
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("socket: another berth is listening on %s: only one agent can run", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket: check for a listener on %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}
