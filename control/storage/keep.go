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
	// defaultDefragInterval is the default of Options.TidyEvery.
	defaultDefragInterval = 10 * time.Minute
	// minReclaimableBytes is the unused part of the file, in bytes, from which giving it
	// back is worth the pause.
	minReclaimableBytes = 64 << 20
	// freeSpaceCheckInterval is how often the free space of the file system is looked at.
	freeSpaceCheckInterval = time.Second
	// walSegmentSize is the size of a file of etcd's log, in bytes. Two of them are always
	// allocated, and the next one must be when the first is full.
	walSegmentSize = 16 << 20
	// defaultMinFreeBytes is the default of Options.Floor: two further segments and what can be
	// written between two looks.
	defaultMinFreeBytes = 64 << 20
	// defaultQuotaBytes is the default of Options.Limit: what etcd's makers say that it is good for.
	defaultQuotaBytes = 8 << 30
	// defaultCompactInterval is the default of Options.ThinEvery.
	defaultCompactInterval = 30 * time.Second
)

// etcd's log is made of small files: by default an empty store has 128 MB of them.
// It is a variable of the library that every member in this process reads, so it is
// set before any can be there.
func init() { wal.SegmentSizeBytes = walSegmentSize }

// maintain looks after the space of the store. Compaction at its time is asked for by
// the library, and here only before that.
func (m *Member) maintain(ctx context.Context) {
	tidy, look, thin := time.NewTicker(m.defragInterval), time.NewTicker(freeSpaceCheckInterval), time.NewTicker(m.compactInterval)
	defer tidy.Stop()
	defer look.Stop()
	defer thin.Stop()
	p := compactionState{}
	for {
		m.checkFreeSpace()
		m.checkQuota(m.etcd.Server.Backend().SizeInUse())
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-tidy.C:
			m.Defragment(minReclaimableBytes)
		case <-thin.C:
			m.compactEarly(ctx, &p)
		}
	}
}

// checkFreeSpace notes whether there is room for writes.
func (m *Member) checkFreeSpace() {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		m.log.Warn("look at the free space of the store", "error", err)
		return
	}
	free := int64(fs.Bavail) * fs.Bsize // no file system is too big for it
	if free >= m.minFree {
		if m.lowFreeBytes.Swap(-1) >= 0 {
			m.log.Info("there is room for writes again", "dir", m.dir, "free", free)
		}
		return
	}
	if m.lowFreeBytes.Swap(free) < 0 {
		m.log.Error("the file system of the store is almost full: writes are refused until there is room", "dir", m.dir, "free", free, "needed", m.minFree)
	}
}

// quotaHysteresis is the part of the limit, one in so many, by which the store must shrink again
// before writes are taken, and grow before its past is dropped once more.
const quotaHysteresis = 16

// checkQuota notes whether the store may hold more than it does.
func (m *Member) checkQuota(used int64) {
	switch was := m.overQuotaBytes.Load() >= 0; {
	case used >= m.quota:
		m.overQuotaBytes.Store(used)
		if !was {
			m.log.Error("the store is full: writes are refused until objects are deleted", "dir", m.dir, "used", used, "limit", m.quota)
		}
	case was && used < m.quota-m.quota/quotaHysteresis:
		m.overQuotaBytes.Store(-1)
		m.log.Info("the store takes writes again", "dir", m.dir, "used", used, "limit", m.quota)
	}
}

// compactionState is what is known of the store from one time that it was thinned to the next.
type compactionState struct {
	revision  int64 // the newest one then
	minUsed   int64 // bytes in use, since its past was dropped
	compacted bool  // its past was
	backoff   int   // times to let pass between two tries at a store that is full
	skip      int   // of these, those that are left
}

// maxCompactBackoff is the most that pause becomes: to drop the past the whole store is read.
const maxCompactBackoff = 10

// compactEarly drops the past of the store before its time when that fills it: somebody who
// writes one big object again and again fills any store from one compaction to the
// next. What came after the last time stays, for watches to resume. A store that is half
// full of what is there now is left alone until it has grown; one that is full is tried
// again, less and less often, as what was deleted is seen by that only.
func (m *Member) compactEarly(ctx context.Context, p *compactionState) {
	used, since := m.etcd.Server.Backend().SizeInUse(), p.revision
	p.revision = m.etcd.Server.KV().Rev()
	if p.compacted {
		p.minUsed = used
	}
	p.minUsed, p.compacted = min(p.minUsed, used), false
	crowded := m.overQuotaBytes.Load() >= 0
	if !crowded {
		p.backoff, p.skip = 0, 0
	}
	if since == 0 || used < m.quota/2 || !crowded && used-p.minUsed < m.quota/quotaHysteresis {
		return
	}
	if p.skip > 0 {
		p.skip--
		return
	}
	if crowded {
		p.backoff = min(2*p.backoff+1, maxCompactBackoff)
		p.skip = p.backoff
	}
	_, err := m.etcd.Server.Compact(ctx, &pb.CompactionRequest{Revision: since})
	if p.compacted = err == nil; p.compacted {
		m.log.Info("dropped the past of the store before its time", "used", used, "limit", m.quota)
	} else if !errors.Is(err, mvcc.ErrCompacted) && ctx.Err() == nil {
		m.log.Warn("drop the past of the store", "error", err)
	}
}

// disarmNoSpaceAlarm takes back an alarm that the store has had from its time with a bound of
// etcd's own, or from the cluster that it was part of.
func (m *Member) disarmNoSpaceAlarm(ctx context.Context) error {
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

// CheckSpace is nil when there is room for writes, and else says what is missing. A
// store that ran into the end of its file system would end at once, and one that is
// too big is slow to open, to copy and to make smaller.
func (m *Member) CheckSpace() error {
	free, used := m.lowFreeBytes.Load(), m.overQuotaBytes.Load()
	switch {
	case free < 0 && used < 0:
		return nil
	case free < 0:
		return fmt.Errorf("the store %s is full: it holds %d MiB, and %d MiB are the most; writes are refused until objects are deleted and their past has gone, reads and deletes go on", m.dir, used>>20, m.quota>>20)
	}
	return fmt.Errorf("the file system of the store %s is almost full: %d MiB are free, %d MiB are needed; writes are refused until there is room, reads and deletes go on", m.dir, free>>20, m.minFree>>20)
}

// Defragment gives unused space of the file back when it is at least so many bytes and
// half of the file.
func (m *Member) Defragment(waste int64) {
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

// DescribeFailure says what ended a member that ran, and what the user can do.
func (m *Member) DescribeFailure(err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("store %s: no space is left on its file system; nothing that was acknowledged is lost: make room and start again: %w", m.dir, err)
	}
	return fmt.Errorf("store %s: has ended; nothing that was acknowledged is lost: %w", m.dir, err)
}

// describeOpenError says what is wrong with a store that cannot be opened.
func describeOpenError(dir string, err error) error {
	switch {
	case isNoSpace(err):
		return fmt.Errorf("store %s: no space is left on its file system; nothing is lost: make room and start again: %w", dir, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("store %s: may not be read or written by this user: %w", dir, err)
	}
	return fmt.Errorf("store %s: cannot be opened; nothing was changed in it. Restore the directory from a copy, or, to begin anew, move it away: %w", dir, err)
}

// isNoSpace tells whether the file system had no space; etcd hands on words only.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) || strings.Contains(err.Error(), syscall.EDQUOT.Error())
}
