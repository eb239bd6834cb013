package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
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
	// limit is the default of Options.Limit: what etcd's makers say that it is good for.
	limit = 8 << 30
	// thinEvery is the default of Options.ThinEvery.
	thinEvery = 30 * time.Second
)

// etcd's log is made of small files: by default an empty store has 128 MB of them.
// It is a variable of the library that every member in this process reads, so it is
// set before any can be there.
func init() { wal.SegmentSizeBytes = segment }

// keep looks after the space of the store. Compaction at its time is asked for by
// the library, and here only before that.
func (m *Member) keep(ctx context.Context) {
	tidy, look, thin := time.NewTicker(m.tidy), time.NewTicker(lookEvery), time.NewTicker(m.thin)
	defer tidy.Stop()
	defer look.Stop()
	defer thin.Stop()
	p := past{}
	for {
		m.look()
		m.weigh(m.etcd.Server.Backend().SizeInUse())
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-tidy.C:
			m.Tidy(wasteFrom)
		case <-thin.C:
			m.forget(ctx, &p)
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

// share is the part of the limit, one in so many, by which the store must shrink again
// before writes are taken, and grow before its past is dropped once more.
const share = 16

// weigh notes whether the store may hold more than it does.
func (m *Member) weigh(used int64) {
	switch was := m.full.Load() >= 0; {
	case used >= m.limit:
		m.full.Store(used)
		if !was {
			m.log.Error("the store is full: writes are refused until objects are deleted", "dir", m.dir, "used", used, "limit", m.limit)
		}
	case was && used < m.limit-m.limit/share:
		m.full.Store(-1)
		m.log.Info("the store takes writes again", "dir", m.dir, "used", used, "limit", m.limit)
	}
}

// past is what is known of the store from one time that it was thinned to the next.
type past struct {
	revision int64 // the newest one then
	least    int64 // bytes in use, since its past was dropped
	dropped  bool  // its past was
	pause    int   // times to let pass between two tries at a store that is full
	skip     int   // of these, those that are left
}

// longestPause is the most that pause becomes: to drop the past the whole store is read.
const longestPause = 10

// forget drops the past of the store before its time when that fills it: somebody who
// writes one big object again and again fills any store from one compaction to the
// next. What came after the last time stays, for watches to resume. A store that is half
// full of what is there now is left alone until it has grown; one that is full is tried
// again, less and less often, as what was deleted is seen by that only.
func (m *Member) forget(ctx context.Context, p *past) {
	used, since := m.etcd.Server.Backend().SizeInUse(), p.revision
	p.revision = m.etcd.Server.KV().Rev()
	if p.dropped {
		p.least = used
	}
	p.least, p.dropped = min(p.least, used), false
	crowded := m.full.Load() >= 0
	if !crowded {
		p.pause, p.skip = 0, 0
	}
	if since == 0 || used < m.limit/2 || !crowded && used-p.least < m.limit/share {
		return
	}
	if p.skip > 0 {
		p.skip--
		return
	}
	if crowded {
		p.pause = min(2*p.pause+1, longestPause)
		p.skip = p.pause
	}
	_, err := m.etcd.Server.Compact(ctx, &pb.CompactionRequest{Revision: since})
	if p.dropped = err == nil; p.dropped {
		m.log.Info("dropped the past of the store before its time", "used", used, "limit", m.limit)
	} else if !errors.Is(err, mvcc.ErrCompacted) && ctx.Err() == nil {
		m.log.Warn("drop the past of the store", "error", err)
	}
}

// disarm takes back an alarm that the store has had from its time with a bound of
// etcd's own, or from the cluster that it was part of.
func (m *Member) disarm(ctx context.Context) error {
	for _, a := range m.etcd.Server.Alarms() {
		if a.GetAlarm() != pb.AlarmType_NOSPACE {
			continue
		}
		m.log.Info("the store was closed for writes because it was full, and is open again", "dir", m.dir)
		if _, err := m.etcd.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.GetMemberID(), Alarm: a.GetAlarm()}); err != nil {
			return fmt.Errorf("open the store for writes: %w", err)
		}
	}
	return nil
}

// Room is nil when there is room for writes, and else says what is missing. A
// store that ran into the end of its file system would end at once, and one that is
// too big is slow to open, to copy and to make smaller.
func (m *Member) Room() error {
	free, used := m.scarce.Load(), m.full.Load()
	switch {
	case free < 0 && used < 0:
		return nil
	case free < 0:
		return fmt.Errorf("the store %s is full: it holds %d MiB, and %d MiB are the most; writes are refused until objects are deleted and their past has gone, reads and deletes go on", m.dir, used>>20, m.limit>>20)
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
