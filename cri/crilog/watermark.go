package crilog

import (
	"context"
	"os"
	"slices"
	"time"
)

// How often a growing log is checked.
const (
	firstCheckDelay     = 50 * time.Millisecond  // after a growth notification
	maxCheckDelay       = 250 * time.Millisecond // also the time without growth after which checks stop
	minCheckDelay       = 10 * time.Millisecond
	unwatchedCheckDelay = time.Second // for a log without growth notifications
	minListInterval     = time.Second // between two calls of Logs
)

// watermark is the known growth of a log.
//
//	       armed: the kernel reports the next growth
//	   ┌──────────────────────────────────────────────┐
//	asleep ◄── no growth for a while ── awake ──► full: rotated ──► awake
//	   └── grows, or an audit finds it ──► ▲ │
//	                                       └─┘ checked again when half of the
//	                                           remaining space may be used
type watermark struct {
	log           Log
	nextCheck     time.Time   // zero: asleep
	info          os.FileInfo // at the last check; nil: none
	checkedAt     time.Time   // time of the last check
	grownAt       time.Time   // last time that growth was observed
	pendingAudits int         // audits that also process the rotated files
}

// auditsAfterRotation: the first audit after a rotation processes what was deferred, the second one
// what a busy runtime delayed during the first.
const auditsAfterRotation = 2

// watcher checks logs when their growth requires it.
type watcher struct {
	*Rotator
	watermarks map[string]*watermark // by path
	listAt     time.Time             // when to call Logs; zero: nothing has changed
	listedAt   time.Time             // last call of Logs
}

// logsChanged schedules a call of Logs.
func (w *watcher) logsChanged(now time.Time) {
	if w.listAt.IsZero() {
		w.listAt = now
		if at := w.listedAt.Add(minListInterval); at.After(now) {
			w.listAt = at
		}
	}
}

// setLogs updates the watermarks to the current logs.
func (w *watcher) setLogs(logs []Log, now time.Time) {
	w.listAt, w.listedAt = time.Time{}, now
	current := make(map[string]bool, len(logs))
	for _, l := range logs {
		current[l.Path] = true
		if m := w.watermarks[l.Path]; m != nil {
			m.log = l
			continue
		}
		w.watermarks[l.Path] = &watermark{log: l, nextCheck: now, grownAt: now, pendingAudits: 1}
	}
	for path := range w.watermarks {
		if !current[path] {
			delete(w.watermarks, path)
			if w.Growth != nil {
				w.Growth.Disarm(path)
			}
		}
	}
}

// wake schedules a check of a log that grows.
func (w *watcher) wake(path string) {
	m := w.watermarks[path]
	if m == nil || !m.nextCheck.IsZero() {
		return
	}
	now := time.Now()
	st, err := os.Stat(path)
	if err != nil { // left to the next audit
		return
	}
	m.info, m.checkedAt, m.grownAt, m.nextCheck = st, now, now, now.Add(firstCheckDelay)
	if st.Size() >= w.MaxSize {
		m.nextCheck = now
	}
}

// audit checks every log regardless of its watermark: a kernel notification may have been lost, and
// a rotation may have been interrupted. A log that is unchanged since the last audit is skipped.
func (w *watcher) audit(ctx context.Context) {
	all := w.Logs()
	w.setLogs(all, time.Now())
	logs := slices.DeleteFunc(slices.Clone(all), func(l Log) bool {
		m := w.watermarks[l.Path]
		st, err := os.Stat(l.Path)
		return err == nil && m.nextCheck.IsZero() && m.pendingAudits == 0 && !m.grown(st)
	})
	ends := w.rotate(ctx, logs)
	now := time.Now()
	for i, l := range logs {
		m := w.watermarks[l.Path]
		if ends[i].moved {
			*m = watermark{log: l, nextCheck: now, grownAt: now, pendingAudits: auditsAfterRotation}
			continue
		}
		if m.pendingAudits > 0 && !ends[i].failed {
			m.pendingAudits--
		}
		if !m.nextCheck.IsZero() {
			continue
		}
		if st, err := os.Stat(l.Path); err == nil && m.grown(st) && st.Size() < w.MaxSize { // a full log was just tried
			w.wake(l.Path)
		}
	}
}

// check checks the logs that are due, and rotates the full ones.
func (w *watcher) check(ctx context.Context) {
	now := time.Now()
	if !w.listAt.IsZero() && !w.listAt.After(now) {
		w.setLogs(w.Logs(), now)
	}
	var full []Log
	for _, m := range w.watermarks {
		if m.nextCheck.IsZero() || m.nextCheck.After(now) {
			continue
		}
		if w.checkLog(m, now) {
			full = append(full, m.log)
		}
	}
	if len(full) == 0 {
		return
	}
	ends := w.rotate(ctx, full)
	now = time.Now()
	for i, l := range full {
		m := w.watermarks[l.Path]
		*m = watermark{log: l, grownAt: now, pendingAudits: auditsAfterRotation}
		if ends[i].moved {
			m.nextCheck = now
		} // the next audit retries otherwise
	}
}

// checkLog checks a log and reports whether it is full.
func (w *watcher) checkLog(m *watermark, now time.Time) bool {
	st, err := os.Stat(m.log.Path)
	if err != nil { // left to the next audit
		m.nextCheck = time.Time{}
		return false
	}
	if st.Size() >= w.MaxSize {
		return true
	}
	switch {
	case m.info == nil:
		m.nextCheck = now.Add(firstCheckDelay)
	case m.grown(st):
		m.grownAt = now
		m.nextCheck = now.Add(checkDelay(w.MaxSize, m.info.Size(), st.Size(), now.Sub(m.checkedAt)))
	case now.Sub(m.grownAt) < maxCheckDelay:
		m.nextCheck = now.Add(maxCheckDelay)
	default:
		m.info, m.checkedAt = st, now
		w.sleep(m)
		return false
	}
	m.info, m.checkedAt = st, now
	return false
}

// sleep stops checking a log until it grows.
func (w *watcher) sleep(m *watermark) {
	if w.Growth == nil || w.Growth.Arm(m.log.Path) != nil {
		m.nextCheck = m.checkedAt.Add(unwatchedCheckDelay)
		return
	}
	m.nextCheck = time.Time{}
	if st, err := os.Stat(m.log.Path); err == nil && m.grown(st) { // grown before it was armed
		w.wake(m.log.Path)
	}
}

// grown reports whether a log has changed since the last check.
func (m *watermark) grown(st os.FileInfo) bool {
	return m.info == nil || !os.SameFile(m.info, st) || m.info.Size() != st.Size()
}

// checkDelay returns the delay until the next check of a log that has grown from before to after bytes in
// the given time: until half of the space that is left below limit may be used.
func checkDelay(limit, before, after int64, took time.Duration) time.Duration {
	grown := after - before
	if grown <= 0 {
		return firstCheckDelay
	}
	half := float64(limit-after) / float64(grown) * float64(took) / 2
	return time.Duration(min(max(half, float64(minCheckDelay)), float64(maxCheckDelay)))
}

// next returns the time of the next check. Zero: never.
func (w *watcher) next() time.Time {
	next := w.listAt
	for _, m := range w.watermarks {
		if !m.nextCheck.IsZero() && (next.IsZero() || m.nextCheck.Before(next)) {
			next = m.nextCheck
		}
	}
	return next
}
