package probes

import (
	"container/heap"
	"time"
)

// schedule holds the probes that wait for their time, the next one first.
type schedule struct{ all []*probe }

func (s *schedule) Len() int           { return len(s.all) }
func (s *schedule) Less(i, j int) bool { return s.all[i].due.Before(s.all[j].due) }
func (s *schedule) Swap(i, j int) {
	s.all[i], s.all[j] = s.all[j], s.all[i]
	s.all[i].at, s.all[j].at = i, j
}

// Push and Pop are for package heap.
func (s *schedule) Push(x any) {
	p, ok := x.(*probe)
	if !ok {
		return
	}
	p.at = len(s.all)
	s.all = append(s.all, p)
}

func (s *schedule) Pop() any {
	last := len(s.all) - 1
	p := s.all[last]
	s.all[last] = nil
	s.all = s.all[:last]
	p.at = -1
	return p
}

// add puts a probe in, or moves it to where its time is now.
func (s *schedule) add(p *probe) {
	if p.at >= 0 {
		heap.Fix(s, p.at)
		return
	}
	heap.Push(s, p)
}

func (s *schedule) remove(p *probe) {
	if p.at >= 0 {
		heap.Remove(s, p.at)
	}
}

// next is when the first is due; zero: there is none.
func (s *schedule) next() time.Time {
	if len(s.all) == 0 {
		return time.Time{}
	}
	return s.all[0].due
}

// take takes out the first if it is due; nil: it is not.
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

// lane bounds how many probes of one kind are under way. Those whose turn has
// not come wait in the order in which they were due.
type lane struct {
	limit int           // under way at once
	quick time.Duration // longer than this none holds its place: it hangs; zero: to its end
	most  int           // with those that hang

	queue []*probe
	held  []*run // in the order of their beginning
	all   int    // under way, those that hang too
}

// free reports whether another may begin.
func (l *lane) free() bool { return len(l.held) < l.limit && l.all < l.most }

func (l *lane) begun(r *run) {
	l.held = append(l.held, r)
	l.all++
}

func (l *lane) ended(r *run) {
	l.all--
	for i, x := range l.held {
		if x == r {
			l.held = append(l.held[:i], l.held[i+1:]...)
			return
		}
	}
}

// giveUp takes the places of those that hang, and returns when the next one has
// hung for too long; zero: nobody waits for a place.
func (l *lane) giveUp(now time.Time) time.Time {
	for l.quick > 0 && len(l.held) > 0 {
		at := l.held[0].began.Add(l.quick)
		if at.After(now) {
			if len(l.queue) == 0 {
				return time.Time{}
			}
			return at
		}
		l.held = l.held[1:]
	}
	return time.Time{}
}

// pop takes the first of the queue that is still wanted; nil: there is none.
func (l *lane) pop() *probe {
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

// stalls measures how long this process stood still while probes were under
// way: somebody who could not listen may not say that nobody spoke.
type stalls struct {
	last  time.Time // when it was last seen to move; zero: nothing is under way
	total time.Duration
}

const (
	pulse      = 100 * time.Millisecond // it looks at least that often
	pulseSlack = 100 * time.Millisecond // more than that late is a stall
)

// beat notes that the process moves; busy: probes are under way.
func (s *stalls) beat(now time.Time, busy bool) {
	if !s.last.IsZero() {
		if gap := now.Sub(s.last); gap > pulse+pulseSlack {
			s.total += gap - pulse
		}
	}
	s.last = time.Time{}
	if busy {
		s.last = now
	}
}
