package images

import (
	"context"
	"fmt"
	"time"

	"berth/agent/plan"
)

// DiskSpace is the state of the image file system.
type DiskSpace struct {
	Free     uint64 // bytes
	Reserved uint64 // part of Free that no pull may use, because pods would be evicted
	Pressure string // why no pull may start, with the numbers; empty: pulls may start
}

const (
	spaceRecheckInterval = time.Second     // while a pull waits for disk space
	spaceReportInterval  = time.Minute     // between updates of the numbers, and between attempts to free space
	sizeTrustPeriod      = 5 * time.Minute // a recorded size, which may be wrong, delays a pull at most that long
	maxPullSizes         = 1000            // recorded sizes
)

// pullSize is the known size of a pull on the disk.
type pullSize struct {
	bytes uint64
	more  bool // it needs more: this much was free when it failed
}

// blockedBySpace returns why a pull may not start because of disk space. Empty: it may. Pulls for
// critical pods always may. The caller holds the lock.
func (l *pullLimiter) blockedBySpace(r *pullRequest, s DiskSpace) string {
	if r.critical || r.present {
		return ""
	}
	if s.Pressure != "" {
		return s.Pressure
	}
	size, known := l.sizes[r.ref]
	if !known || !r.waitingSince.IsZero() && l.now().Sub(r.waitingSince) >= sizeTrustPeriod {
		return ""
	}
	var others uint64 // that the running pulls may still need
	for o := range l.running {
		others += l.sizes[o.ref].bytes
	}
	available := s.Free - min(s.Free, s.Reserved+others)
	if available > size.bytes || available == size.bytes && !size.more {
		return ""
	}
	text := "it takes " + mebibytes(size.bytes)
	if size.more {
		text = "it takes more than " + mebibytes(size.bytes)
	}
	text += fmt.Sprintf(", and %s are free", mebibytes(s.Free))
	if s.Reserved > 0 {
		text += fmt.Sprintf(", of which %s are reserved", mebibytes(s.Reserved))
	}
	if others > 0 {
		text += fmt.Sprintf(" and %s are needed by running pulls", mebibytes(others))
	}
	return text
}

func mebibytes(n uint64) string { return fmt.Sprintf("%.1fMi", float64(n)/(1<<20)) }

// nextRunnable returns the first request in the queue for which there is enough disk space, or nil.
// It marks the requests before it as waiting. The caller holds the lock.
func (l *pullLimiter) nextRunnable() *pullRequest {
	if len(l.queue) == 0 {
		return nil
	}
	s, known := l.diskSpace()
	for _, r := range l.queue {
		reason := l.blockedBySpace(r, s)
		if reason == "" || !known {
			return r
		}
		if s.Pressure != "" {
			r.waitingSince = time.Time{}
		} else if r.waitingSince.IsZero() {
			r.waitingSince = l.now()
		}
		l.setWaiting(r, reason)
	}
	return nil
}

// diskSpace returns the current disk space, if it is known. The caller holds the lock.
func (l *pullLimiter) diskSpace() (s DiskSpace, known bool) {
	if l.space == nil {
		return s, false
	}
	return l.space()
}

// setWaiting records why a request waits for disk space. The numbers change all the time, so an
// existing reason is updated only once per interval. The caller holds the lock.
func (l *pullLimiter) setWaiting(r *pullRequest, reason string) {
	now := l.now()
	if r.waitReason != "" && now.Sub(r.reportedAt) < spaceReportInterval {
		return
	}
	r.waitReason, r.reportedAt = reason, now
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// fits reports whether a request does not have to wait for disk space now.
func (l *pullLimiter) fits(r *pullRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, known := l.diskSpace()
	return !known || !r.startedAt.IsZero() || l.blockedBySpace(r, s) == ""
}

// recordSize records the disk usage of a finished pull, if no other pull ran concurrently. It must
// be called before release.
func (l *pullLimiter) recordSize(r *pullRequest, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, known := l.diskSpace()
	if !known || !r.exclusive {
		return
	}
	if len(l.sizes) >= maxPullSizes {
		clear(l.sizes)
	}
	switch {
	case err == nil && now.Free < r.freeAtStart:
		l.sizes[r.ref] = pullSize{bytes: r.freeAtStart - now.Free}
	case err == nil: // nothing was downloaded, or more space was freed meanwhile
		delete(l.sizes, r.ref)
	case plan.KindOf(err) == plan.NoSpace:
		l.sizes[r.ref] = pullSize{bytes: r.freeAtStart, more: true}
	}
}

// waitToStart waits until a pull may start. While there is not enough disk space, it tries to free
// some.
func (m *Manager) waitToStart(ctx context.Context, r *pullRequest, present func(context.Context) bool) error {
	reported := false
	err := m.limiter.wait(ctx, r, func() {
		reported = true
		m.onWaitingForSpaceChanged()
		if present(ctx) { // the pull downloads little or nothing
			m.limiter.markPresent(r)
			return
		}
		m.freeSpaceFor(ctx, r)
		m.limiter.recheck()
	})
	if reported {
		m.onWaitingForSpaceChanged()
	}
	return err
}

// freeSpaceFor removes unused images until the request fits, for one request at a time.
func (m *Manager) freeSpaceFor(ctx context.Context, r *pullRequest) {
	if m.freeSpace == nil {
		return
	}
	select {
	case m.freeing <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-m.freeing }()
	enough := func() bool { return ctx.Err() != nil || m.limiter.fits(r) }
	if !enough() {
		m.freeSpace(ctx, enough)
	}
}

// WaitingForSpace returns why the pull of an image waits for disk space, with the numbers. Empty:
// it does not.
func (m *Manager) WaitingForSpace(image string) string {
	if p, ok := m.progress(image); ok {
		return p.WaitingForSpace
	}
	return ""
}

// FreeSpace removes unused images until enough returns true, for a node under disk pressure: the
// least recently used first. Images below MinAge come last, because a pod may be about to use them.
// Only MinAge, KeepNames, KeepPreloaded, Pinned and InUse of o are used.
func (m *Manager) FreeSpace(ctx context.Context, o GCOptions, enough func() bool) (GCResult, error) {
	return m.collect(ctx, o, gcPolicy{high: 100, low: 100, minAge: o.MinAge, allUnused: true}, diskUsage{}, enough)
}
