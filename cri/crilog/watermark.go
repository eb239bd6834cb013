package crilog

import (
	"context"
	"os"
	"slices"
	"time"
)

// How often a log that grows is looked at.
const (
	lookFirst  = 50 * time.Millisecond  // after it was heard to grow
	lookCalm   = 250 * time.Millisecond // at most; after as long without growth nobody looks any more
	lookLeast  = 10 * time.Millisecond
	lookBlind  = time.Second // at a log whose growth cannot be told
	renewLeast = time.Second // between two looks at which logs there are
)

// mark is what is known of the growth of a log.
//
//	      set: the kernel tells of the next growth
//	   ┌──────────────────────────────────────────────┐
//	asleep ◄── no growth for a while ── awake ──► full: rotated ──► awake
//	   └── grows, or an audit finds it ──► ▲ │
//	                                       └─┘ looked at again when half of what
//	                                           is left may have been filled
type mark struct {
	log   Log
	next  time.Time   // of the next look; zero: it sleeps
	seen  os.FileInfo // by the last look; nil: none
	at    time.Time   // of that look
	moved time.Time   // when it was last seen to have grown
	owed  int         // audits that look at its folder, too
}

// After a rotation an audit finds what was put off, the next one what a busy
// runtime held up then.
const owedAfter = 2

// watchman looks at logs when their growth asks for it.
type watchman struct {
	*Rotator
	marks map[string]*mark // by path
	renew time.Time        // when to ask which logs there are; zero: nothing has changed
	asked time.Time        // when that was last asked
}

// changed takes in that there may be other logs.
func (w *watchman) changed(now time.Time) {
	if w.renew.IsZero() {
		w.renew = now
		if at := w.asked.Add(renewLeast); at.After(now) {
			w.renew = at
		}
	}
}

// adopt makes the marks those of the logs that there are.
func (w *watchman) adopt(logs []Log, now time.Time) {
	w.renew, w.asked = time.Time{}, now
	there := make(map[string]bool, len(logs))
	for _, l := range logs {
		there[l.Path] = true
		if m := w.marks[l.Path]; m != nil {
			m.log = l
			continue
		}
		w.marks[l.Path] = &mark{log: l, next: now, moved: now, owed: 1}
	}
	for path := range w.marks {
		if !there[path] {
			delete(w.marks, path)
			if w.Growth != nil {
				w.Growth.Disarm(path)
			}
		}
	}
}

// wake has a log that grows looked at.
func (w *watchman) wake(path string) {
	m := w.marks[path]
	if m == nil || !m.next.IsZero() {
		return
	}
	now := time.Now()
	st, err := os.Stat(path)
	if err != nil { // an audit sees to it
		return
	}
	m.seen, m.at, m.moved, m.next = st, now, now, now.Add(lookFirst)
	if st.Size() >= w.MaxSize {
		m.next = now
	}
}

// audit looks at every log, whatever is known of it: the kernel may have been
// too busy to tell, and a rotation may have been cut short. Of one that has
// rested since the last audit there is nothing more to see.
func (w *watchman) audit(ctx context.Context) {
	all := w.Logs()
	w.adopt(all, time.Now())
	logs := slices.DeleteFunc(slices.Clone(all), func(l Log) bool {
		m := w.marks[l.Path]
		st, err := os.Stat(l.Path)
		return err == nil && m.next.IsZero() && m.owed == 0 && !m.grown(st)
	})
	ends := w.rotate(ctx, logs)
	now := time.Now()
	for i, l := range logs {
		m := w.marks[l.Path]
		if ends[i].moved {
			*m = mark{log: l, next: now, moved: now, owed: owedAfter}
			continue
		}
		if m.owed > 0 && !ends[i].failed {
			m.owed--
		}
		if !m.next.IsZero() {
			continue
		}
		if st, err := os.Stat(l.Path); err == nil && m.grown(st) && st.Size() < w.MaxSize { // a full one was tried
			w.wake(l.Path)
		}
	}
}

// look looks at the logs whose time has come, and rotates the full ones.
func (w *watchman) look(ctx context.Context) {
	now := time.Now()
	if !w.renew.IsZero() && !w.renew.After(now) {
		w.adopt(w.Logs(), now)
	}
	var full []Log
	for _, m := range w.marks {
		if m.next.IsZero() || m.next.After(now) {
			continue
		}
		if w.measure(m, now) {
			full = append(full, m.log)
		}
	}
	if len(full) == 0 {
		return
	}
	ends := w.rotate(ctx, full)
	now = time.Now()
	for i, l := range full {
		m := w.marks[l.Path]
		*m = mark{log: l, moved: now, owed: owedAfter}
		if ends[i].moved {
			m.next = now
		} // else an audit tries again
	}
}

// measure looks at one log and says whether it is full.
func (w *watchman) measure(m *mark, now time.Time) bool {
	st, err := os.Stat(m.log.Path)
	if err != nil { // an audit sees to it
		m.next = time.Time{}
		return false
	}
	if st.Size() >= w.MaxSize {
		return true
	}
	switch {
	case m.seen == nil:
		m.next = now.Add(lookFirst)
	case m.grown(st):
		m.moved = now
		m.next = now.Add(pause(w.MaxSize, m.seen.Size(), st.Size(), now.Sub(m.at)))
	case now.Sub(m.moved) < lookCalm:
		m.next = now.Add(lookCalm)
	default:
		m.seen, m.at = st, now
		w.sleep(m)
		return false
	}
	m.seen, m.at = st, now
	return false
}

// sleep looks at a log no more until it grows.
func (w *watchman) sleep(m *mark) {
	if w.Growth == nil || w.Growth.Arm(m.log.Path) != nil {
		m.next = m.at.Add(lookBlind)
		return
	}
	m.next = time.Time{}
	if st, err := os.Stat(m.log.Path); err == nil && m.grown(st) { // before it was set
		w.wake(m.log.Path)
	}
}

// grown reports whether a log is otherwise than it was seen last.
func (m *mark) grown(st os.FileInfo) bool {
	return m.seen == nil || !os.SameFile(m.seen, st) || m.seen.Size() != st.Size()
}

// pause is how long a log that has grown from was to is bytes is left alone:
// until half of what is left to most would be filled.
func pause(most, was, is int64, took time.Duration) time.Duration {
	grown := is - was
	if grown <= 0 {
		return lookFirst
	}
	half := float64(most-is) / float64(grown) * float64(took) / 2
	return time.Duration(min(max(half, float64(lookLeast)), float64(lookCalm)))
}

// next is when the next look is due; zero: never.
func (w *watchman) next() time.Time {
	next := w.renew
	for _, m := range w.marks {
		if !m.next.IsZero() && (next.IsZero() || m.next.Before(next)) {
			next = m.next
		}
	}
	return next
}
