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
	// defaultDefragInterval is the default of Options.DefragmentationInterval.
	defaultDefragInterval = 10 * time.Minute
	// minReclaimableBytes is the minimum unused space for which Defragment is worth the pause.
	minReclaimableBytes = 64 << 20
	// freeSpaceCheckInterval is how often the free space of the file system is checked.
	freeSpaceCheckInterval = time.Second
	// walSegmentSize is the size of a WAL file, in bytes. Two of them are always allocated, and a
	// third one when the first is full.
	walSegmentSize = 16 << 20
	// defaultMinFreeBytes is the default of Options.MinFreeBytes: two more WAL segments and what
	// can be written between two checks.
	defaultMinFreeBytes = 64 << 20
	// defaultQuotaBytes is the default of Options.QuotaBytes: the maximum that etcd recommends.
	defaultQuotaBytes = 8 << 30
	// defaultCompactInterval is the default of Options.EarlyCompactionInterval.
	defaultCompactInterval = 30 * time.Second
)

// By default an empty store has 128 MB of WAL files. The segment size is a global variable of the
// library that every member reads, so it is set before any can start.
func init() { wal.SegmentSizeBytes = walSegmentSize }

// maintain keeps the store within its limits until ctx is done. The API server library requests the
// regular compactions, this only the early ones.
func (m *Member) maintain(ctx context.Context) {
	defrag := time.NewTicker(m.defragInterval)
	freeSpace := time.NewTicker(freeSpaceCheckInterval)
	compact := time.NewTicker(m.compactInterval)
	defer defrag.Stop()
	defer freeSpace.Stop()
	defer compact.Stop()
	p := compactionState{}
	for {
		m.checkFreeSpace()
		m.checkQuota(m.etcd.Server.Backend().SizeInUse())
		select {
		case <-ctx.Done():
			return
		case <-freeSpace.C:
		case <-defrag.C:
			m.Defragment(minReclaimableBytes)
		case <-compact.C:
			m.compactEarly(ctx, &p)
		}
	}
}

// checkFreeSpace updates lowFreeBytes.
func (m *Member) checkFreeSpace() {
	var fs unix.Statfs_t
	if err := unix.Statfs(m.dir, &fs); err != nil {
		m.log.Warn("free space check failed", "err", err)
		return
	}
	free := int64(fs.Bavail) * fs.Bsize // no file system is larger
	if free >= m.minFree {
		if m.lowFreeBytes.Swap(-1) >= 0 {
			m.log.Info("file system has enough free space, writes accepted", "dir", m.dir, "free", free)
		}
		return
	}
	if m.lowFreeBytes.Swap(free) < 0 {
		m.log.Error("file system almost full, writes rejected", "dir", m.dir, "free", free, "needed", m.minFree)
	}
}

// quotaHysteresis is a fraction of the quota: the store must shrink by quota/quotaHysteresis before
// writes are accepted again, and grow by as much before the next early compaction.
const quotaHysteresis = 16

// checkQuota updates overQuotaBytes.
func (m *Member) checkQuota(used int64) {
	switch overQuota := m.overQuotaBytes.Load() >= 0; {
	case used >= m.quota:
		m.overQuotaBytes.Store(used)
		if !overQuota {
			m.log.Error("store over quota, writes rejected", "dir", m.dir, "used", used, "limit", m.quota)
		}
	case overQuota && used < m.quota-m.quota/quotaHysteresis:
		m.overQuotaBytes.Store(-1)
		m.log.Info("store below quota, writes accepted", "dir", m.dir, "used", used, "limit", m.quota)
	}
}

// compactionState is the state between two calls of compactEarly.
type compactionState struct {
	revision  int64 // newest revision at the last call
	minUsed   int64 // minimum bytes in use since the last compaction
	compacted bool  // the last call compacted
	backoff   int   // calls to skip between two attempts over quota
	skip      int   // remaining calls to skip
}

// maxCompactBackoff limits the backoff: a compaction reads the whole store.
const maxCompactBackoff = 10

// compactEarly compacts the store before the regular compaction if old revisions fill it: frequent
// updates of a large object can fill any store within a compaction interval. Revisions since the
// last call are kept for watches. If current objects use half of the quota, it compacts only after
// further growth. Over quota it retries with increasing pauses, because only a compaction shows how
// much deleted objects free.
func (m *Member) compactEarly(ctx context.Context, p *compactionState) {
	used, since := m.etcd.Server.Backend().SizeInUse(), p.revision
	p.revision = m.etcd.Server.KV().Rev()
	if p.compacted {
		p.minUsed = used
	}
	p.minUsed, p.compacted = min(p.minUsed, used), false
	overQuota := m.overQuotaBytes.Load() >= 0
	if !overQuota {
		p.backoff, p.skip = 0, 0
	}
	if since == 0 || used < m.quota/2 || !overQuota && used-p.minUsed < m.quota/quotaHysteresis {
		return
	}
	if p.skip > 0 {
		p.skip--
		return
	}
	if overQuota {
		p.backoff = min(2*p.backoff+1, maxCompactBackoff)
		p.skip = p.backoff
	}
	_, err := m.etcd.Server.Compact(ctx, &pb.CompactionRequest{Revision: since})
	if p.compacted = err == nil; p.compacted {
		m.log.Info("store compacted early", "used", used, "limit", m.quota)
	} else if !errors.Is(err, mvcc.ErrCompacted) && ctx.Err() == nil {
		m.log.Warn("early compaction failed", "err", err)
	}
}

// disarmNoSpaceAlarm clears a NOSPACE alarm from an earlier configuration or cluster, in which
// etcd's own quota was enabled.
func (m *Member) disarmNoSpaceAlarm(ctx context.Context) error {
	for _, a := range m.etcd.Server.Alarms() {
		if a.GetAlarm() != pb.AlarmType_NOSPACE {
			continue
		}
		m.log.Info("NOSPACE alarm disarmed", "dir", m.dir)
		if _, err := m.etcd.Server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE,
			MemberID: a.GetMemberID(), Alarm: a.GetAlarm()}); err != nil {
			return fmt.Errorf("disarm NOSPACE alarm: %w", err)
		}
	}
	return nil
}

// CheckSpace returns an error with the reason if writes must be rejected. etcd fails on a full file
// system, and a store over its quota is slow to open, copy and defragment.
func (m *Member) CheckSpace() error {
	free, used := m.lowFreeBytes.Load(), m.overQuotaBytes.Load()
	switch {
	case free < 0 && used < 0:
		return nil
	case free < 0:
		return fmt.Errorf(
			"the store %s is full: it uses %d MiB of %d MiB; writes are rejected until objects are deleted and "+
				"compacted, reads and deletes are still served",
			m.dir,
			used>>20,
			m.quota>>20,
		)
	}
	return fmt.Errorf(
		"the file system of the store %s is almost full: %d MiB are free, %d MiB are required; writes are rejected "+
			"until space is freed, reads and deletes are still served",
		m.dir,
		free>>20,
		m.minFree>>20,
	)
}

// Defragment returns unused space to the file system if it is at least minUnused bytes and half
// of the file.
func (m *Member) Defragment(minUnused int64) {
	backend := m.etcd.Server.Backend()
	size, used := backend.Size(), backend.SizeInUse()
	if size-used < minUnused || used > size/2 {
		return
	}
	start := time.Now()
	if err := backend.Defrag(); err != nil {
		m.log.Warn("defragmentation failed", "err", err)
		return
	}
	m.log.Info("store defragmented", "before", size, "after", backend.Size(), "took", time.Since(start))
}

// DescribeFailure adds the consequence and the remedy to the error of a failed member.
func (m *Member) DescribeFailure(err error) error {
	if isNoSpace(err) {
		return fmt.Errorf(
			"store %s: no space left on its file system; no acknowledged write is lost: free space and start again: %w",
			m.dir,
			err,
		)
	}
	return fmt.Errorf("store %s: failed; no acknowledged write is lost: %w", m.dir, err)
}

// describeOpenError adds the remedy to the error of a store that cannot be opened.
func describeOpenError(dir string, err error) error {
	switch {
	case isNoSpace(err):
		return fmt.Errorf(
			"store %s: no space left on its file system; nothing is lost: free space and start again: %w",
			dir,
			err,
		)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("store %s: not readable or not writable by this user: %w", dir, err)
	}
	return fmt.Errorf(
		"store %s: cannot be opened; it was not modified. Restore the directory from a backup, or move it away to "+
			"start with an empty store: %w",
		dir,
		err,
	)
}

// isNoSpace reports whether an error means a full file system or quota. etcd passes some of these
// errors on as text only.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) ||
		strings.Contains(err.Error(), syscall.ENOSPC.Error()) || strings.Contains(err.Error(), syscall.EDQUOT.Error())
}
