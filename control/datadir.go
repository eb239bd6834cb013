package control

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// errDataDirInUse means that a server is running on the data directory.
var errDataDirInUse = errors.New("in use by another berth-control")

// lockDataDir locks the data directory against a second server, which would replace the sockets of
// the first before it found the store in use.
func lockDataDir(c *Config) (*os.File, error) {
	path := c.path("lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errDataDirInUse
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("data directory %s: %w", c.DataDir, err)
	}
	return f, nil
}

// unlockDataDir releases the lock. Closing the file is not enough: a child process that another goroutine is starting
// holds a copy of it until it executes its program.
func unlockDataDir(f *os.File) {
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
	_ = f.Close()
}
