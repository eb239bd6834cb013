package cri

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A shim leaks its socket if it is killed while containerd starts it, or if it is never shut down.
// The name of the socket is a hash that does not reveal the owner. But a socket without a listener
// is useless to everyone, and containerd replaces it when it needs the name.

// socketDirs are the directories with shim sockets: containerd's default and those found in
// bundles.
type socketDirs struct {
	mu       sync.Mutex
	dirs     []string
	onChange func(dirs []string) // persists the directories; may be nil
}

// add records the directory of a shim address.
func (s *socketDirs) add(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(address, "unix://")
	if dir := filepath.Dir(path); ok && filepath.IsAbs(path) && isContainerID(filepath.Base(path)) &&
		!slices.Contains(s.dirs, dir) {
		s.dirs = append(s.dirs, dir)
		if s.onChange != nil {
			s.onChange(slices.Clone(s.dirs))
		}
	}
}

// known reports whether a directory was found in a bundle.
func (s *socketDirs) known() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dirs) > 0
}

// SetSocketDirs restores the directories that an earlier process found, and sets a callback for
// additional ones. A bundle is removed with its pod, so leaked sockets may be the only trace left.
// Call it before any other call.
func (c *Client) SetSocketDirs(dirs []string, onChange func(dirs []string)) {
	c.sockets.mu.Lock()
	defer c.sockets.mu.Unlock()
	c.sockets.dirs, c.sockets.onChange = dirs, onChange
}

// addSocketDirOf records the socket directory of a sandbox that is about to be removed, unless one
// is known: no bundle names it afterwards.
func (c *Client) addSocketDirOf(ctx context.Context, sandbox string) {
	if c.sockets.known() {
		return
	}
	if f, ok, err := c.Layout(ctx); err == nil && ok {
		c.sockets.add(shimAddress(filepath.Join(f.TaskDir, sandbox)))
	}
}

func (s *socketDirs) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{defaultSocketDir}, slices.DeleteFunc(slices.Clone(s.dirs),
		func(d string) bool { return d == defaultSocketDir })...)
}

// defaultSocketDir is where every containerd on a machine creates its sockets by default.
const defaultSocketDir = "/run/containerd/s"

// shimAddress returns the address of the shim of a bundle. Empty: the bundle does not name it.
func shimAddress(bundle string) string {
	if text, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil {
		return strings.TrimSpace(string(text))
	}
	var boot struct{ Address string }
	if text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err != nil ||
		json.Unmarshal(text, &boot) != nil {
		return ""
	}
	return boot.Address
}

// StaleSockets returns the shim sockets without a listener. A socket that is being created may be
// in the result, so the caller has to list twice.
func (c *Client) StaleSockets() (out []string) {
	for _, dir := range c.sockets.all() {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); isContainerID(e.Name()) && e.Type() == fs.ModeSocket &&
				isStale(path) {
				out = append(out, path)
			}
		}
	}
	return out
}

// RemoveStaleSocket removes a socket if it still has no listener.
func (c *Client) RemoveStaleSocket(path string) error {
	if !isStale(path) {
		return nil
	}
	return ignoreNotExist(os.Remove(path))
}

// isStale reports whether nothing listens on a socket, in any network namespace.
func isStale(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.ECONNREFUSED)
}
