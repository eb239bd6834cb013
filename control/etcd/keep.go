package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
)

const (
	// tidyEvery is the default of Options.TidyEvery.
	tidyEvery = 10 * time.Minute
	// wasteFrom is the unused part of the file, in bytes, from which giving it
	// back is worth the pause.
	wasteFrom = 64 << 20
	// lookEvery is how often the free space of the file system is looked at.
	lookEvery = time.Second
	// segment is the size of a file of etcd's log, in bytes. Two of them are always
	// allocated, and the next one must be when the first is full.
	segment = 16 << 20
	// floor is the default of Options.Floor: two further segments and what can be
	// written between two looks.
	floor = 64 << 20
)

// etcd's log is made of small files: by default an empty store has 128 MB of them.
// It is a variable of the library that every member in this process reads, so it is
// set before any can be there.
func init() { wal.SegmentSizeBytes = segment }

// keep looks after the space of the store. Compaction itself is asked for by
// the library.
func (m *Member) keep(ctx context.Context) {
	tidy, look := time.NewTicker(m.tidy), time.NewTicker(lookEvery)
	defer tidy.Stop()
	defer look.Stop()
	for {
		m.look()
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-tidy.C:
			m.Tidy(wasteFrom)
		}
	}
}

// look notes whether there is room for writes.
func (m *Member) look() {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		m.log.Warn("look at the free space of the store", "error", err)
		return
	}
	free := int64(fs.Bavail) * fs.Bsize // no file system is too big for it
	if free >= m.floor {
		if m.scarce.Swap(-1) >= 0 {
			m.log.Info("there is room for writes again", "dir", m.dir, "free", free)
		}
		return
	}
	if m.scarce.Swap(free) < 0 {
		m.log.Error("the file system of the store is almost full: writes are refused until there is room", "dir", m.dir, "free", free, "needed", m.floor)
	}
}

// Room is nil when there is room for writes, and else says what is missing. A
// store that ran into the end of its file system would end at once.
func (m *Member) Room() error {
	free := m.scarce.Load()
	if free < 0 {
		return nil
	}
	return fmt.Errorf("the file system of the store %s is almost full: %d MiB are free, %d MiB are needed; writes are refused until there is room, reads and deletes go on", m.dir, free>>20, m.floor>>20)
}

// Tidy gives unused space of the file back when it is at least so many bytes and
// half of the file.
func (m *Member) Tidy(waste int64) {
	backend := m.etcd.Server.Backend()
	size, used := backend.Size(), backend.SizeInUse()
	if size-used < waste || used > size/2 {
		return
	}
	begin := time.Now()
	if err := backend.Defrag(); err != nil {
		m.log.Warn("defragment the store", "error", err)
		return
	}
	m.log.Info("defragmented the store", "before", size, "after", backend.Size(), "took", time.Since(begin))
}

// Explain says what ended a member that ran, and what the user can do.
func (m *Member) Explain(err error) error {
	if full(err) {
		return fmt.Errorf("store %s: no space is left on its file system; nothing that was acknowledged is lost: make room and start again: %w", m.dir, err)
	}
	return fmt.Errorf("store %s: has ended; nothing that was acknowledged is lost: %w", m.dir, err)
}

// explain says what is wrong with a store that cannot be opened.
func explain(dir string, err error) error {
	switch {
	case full(err):
		return fmt.Errorf("store %s: no space is left on its file system; nothing is lost: make room and start again: %w", dir, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("store %s: may not be read or written by this user: %w", dir, err)
	}
	return fmt.Errorf("store %s: cannot be opened; nothing was changed in it. Restore the directory from a copy, or, to begin anew, move it away: %w", dir, err)
}

// full tells whether the file system had no space; etcd hands on words only.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) || strings.Contains(err.Error(), syscall.EDQUOT.Error())
}
