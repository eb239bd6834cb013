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

// A shim that is killed while containerd starts it, or that nobody asks to end,
// leaves its socket. The name is a hash, so that nobody can tell whose it was;
// but a socket on which nobody listens is of no use to anybody, and containerd
// itself replaces it when it needs the name.

// socketDirs are the directories of shims' sockets: containerd's own, and what
// the bundles of tasks have named.
type socketDirs struct {
	mu   sync.Mutex
	dirs []string
	note func(dirs []string) // keeps them for the next life; nil: nobody does
}

// learn notes where the shim of a bundle listens.
func (s *socketDirs) learn(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, ok := strings.CutPrefix(address, "unix://")
	if dir := filepath.Dir(path); ok && filepath.IsAbs(path) && isID(filepath.Base(path)) && !slices.Contains(s.dirs, dir) {
		s.dirs = append(s.dirs, dir)
		if s.note != nil {
			s.note(slices.Clone(s.dirs))
		}
	}
}

// any reports whether a bundle has ever named one.
func (s *socketDirs) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.dirs) > 0
}

// SetSocketDirs takes the directories that an earlier life has learnt, and has
// note keep all whenever there is one more. A bundle goes with its pod: what a shim
// leaves may be all that there is to find. Call it before the first call.
func (c *Client) SetSocketDirs(dirs []string, note func(dirs []string)) {
	c.sockets.mu.Lock()
	defer c.sockets.mu.Unlock()
	c.sockets.dirs, c.sockets.note = dirs, note
}

// learnSocket notes where the shim of a sandbox that is about to go listens, unless
// that is known: no bundle says so afterwards.
func (c *Client) learnSocket(ctx context.Context, sandbox string) {
	if c.sockets.any() {
		return
	}
	if f, ok, err := c.Layout(ctx); err == nil && ok {
		c.sockets.learn(addressOf(filepath.Join(f.TaskDir, sandbox)))
	}
}

func (s *socketDirs) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{defaultSockets}, slices.DeleteFunc(slices.Clone(s.dirs), func(d string) bool { return d == defaultSockets })...)
}

// defaultSockets is where every containerd of a machine has them unless it is
// told otherwise.
const defaultSockets = "/run/containerd/s"

// addressOf reads from a bundle where its shim listens; empty: it does not say.
func addressOf(bundle string) string {
	if text, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil {
		return strings.TrimSpace(string(text))
	}
	var boot struct{ Address string }
	if text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err != nil || json.Unmarshal(text, &boot) != nil {
		return ""
	}
	return boot.Address
}

// StaleSockets lists sockets of shims on which nobody listens. One that is made
// just now may be among them: the caller looks twice.
func (c *Client) StaleSockets() (out []string) {
	for _, dir := range c.sockets.all() {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if path := filepath.Join(dir, e.Name()); isID(e.Name()) && e.Type() == fs.ModeSocket && dead(path) {
				out = append(out, path)
			}
		}
	}
	return out
}

// RemoveStaleSocket removes a socket if still nobody listens on it.
func (c *Client) RemoveStaleSocket(path string) error {
	if !dead(path) {
		return nil
	}
	return ignoreGone(os.Remove(path))
}

// dead reports whether nobody listens on a socket, in whatever namespace.
func dead(path string) bool {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.ECONNREFUSED)
}
