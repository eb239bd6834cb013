package probes

import (
	"container/heap"
	"time"
)

// schedule is a heap of the waiting probes by due time.
type schedule struct{ all []*probe }

func (s *schedule) Len() int           { return len(s.all) }
func (s *schedule) Less(i, j int) bool { return s.all[i].due.Before(s.all[j].due) }
func (s *schedule) Swap(i, j int) {
	s.all[i], s.all[j] = s.all[j], s.all[i]
	s.all[i].heapIndex, s.all[j].heapIndex = i, j
}

// Push and Pop implement heap.Interface.
func (s *schedule) Push(x any) {
	p, ok := x.(*probe)
	if !ok {
		return
	}
	p.heapIndex = len(s.all)
	s.all = append(s.all, p)
}

func (s *schedule) Pop() any {
	last := len(s.all) - 1
	p := s.all[last]
	s.all[last] = nil
	s.all = s.all[:last]
	p.heapIndex = -1
	return p
}

// add adds a probe or updates its position.
func (s *schedule) add(p *probe) {
	if p.heapIndex >= 0 {
		heap.Fix(s, p.heapIndex)
		return
	}
	heap.Push(s, p)
}

func (s *schedule) remove(p *probe) {
	if p.heapIndex >= 0 {
		heap.Remove(s, p.heapIndex)
	}
}

// next returns the due time of the first probe. Zero: there is none.
func (s *schedule) next() time.Time {
	if len(s.all) == 0 {
		return time.Time{}
	}
	return s.all[0].due
}

// take removes and returns the first probe if it is due, else nil.
func (s *schedule) take(now time.Time) *probe {
	if len(s.all) == 0 || s.all[0].due.After(now) {
		return nil
	}
	p, ok := heap.Pop(s).(*probe)
	if !ok {
		return nil
	}
	return p
}

// workerPool limits the concurrent probes of one type. Other due probes wait in the order of their
// due times.
type workerPool struct {
	limit       int           // concurrent runs that hold a slot
	slotTimeout time.Duration // a run that takes longer loses its slot because it hangs; zero: never
	maxWithHung int           // concurrent runs, hung ones included

	queue   []*probe
	holders []*run // runs with a slot, oldest first
	running int    // running probes, hung ones included
}

// hasSlot reports whether another probe may start.
func (l *workerPool) hasSlot() bool { return len(l.holders) < l.limit && l.running < l.maxWithHung }

func (l *workerPool) started(r *run) {
	l.holders = append(l.holders, r)
	l.running++
}

func (l *workerPool) ended(r *run) {
	l.running--
	for i, x := range l.holders {
		if x == r {
			l.holders = append(l.holders[:i], l.holders[i+1:]...)
			return
		}
	}
}

// releaseHung takes the slots of hung runs, and returns when to check again. Zero: no probe is
// waiting.
func (l *workerPool) releaseHung(now time.Time) time.Time {
	for l.slotTimeout > 0 && len(l.holders) > 0 {
		at := l.holders[0].startedAt.Add(l.slotTimeout)
		if at.After(now) {
			if len(l.queue) == 0 {
				return time.Time{}
			}
			return at
		}
		l.holders = l.holders[1:]
	}
	return time.Time{}
}

// pop returns the first queued probe that is still wanted, or nil.
func (l *workerPool) pop() *probe {
	for len(l.queue) > 0 {
		p := l.queue[0]
		l.queue = l.queue[1:]
		p.queued = false
		if p.wanted {
			return p
		}
	}
	return nil
}

// pauses measures how long this process was paused while probes were running. A timeout during a
// pause does not mean that the container did not respond.
type pauses struct {
	last  time.Time // last tick; zero: no probe is running
	total time.Duration
}

const (
	pauseTick      = 100 * time.Millisecond // maximum interval between ticks
	pauseTolerance = 100 * time.Millisecond // a longer delay is a pause
)

// tick records that the process is running. busy: probes are running.
func (s *pauses) tick(now time.Time, busy bool) {
	if !s.last.IsZero() {
		if gap := now.Sub(s.last); gap > pauseTick+pauseTolerance {
			s.total += gap - pauseTick
		}
	}
	s.last = time.Time{}
	if busy {
		s.last = now
	}
}
