package allocator

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"berth/agent/plan"
)

// StartSlotsUnderPressure returns how many of most pods may start at once while tasks wait for a
// CPU for the given percentage of time: most up to the threshold from, then linearly fewer, and
// least at 100.
func StartSlotsUnderPressure(most, least int, stalled, from float64) int {
	if stalled <= from || from >= 100 {
		return most
	}
	left := (100 - min(stalled, 100)) / (100 - from)
	return min(most, max(1, least, int(math.Ceil(float64(most)*left))))
}

// pressureInterval is the interval of checks of the CPU pressure while pods wait because of it.
const pressureInterval = time.Second

// freeStartSlots returns the number of free start slots. It reads the CPU pressure only if that can
// delay a queued pod.
func (s *state) freeStartSlots() int {
	s.throttled = false
	if s.cpuPressure == nil || len(s.queue) == 0 || len(s.starting) == 0 {
		return s.startSlots - len(s.starting)
	}
	slots := s.startSlots
	if now, known := s.cpuPressure(); known {
		slots = StartSlotsUnderPressure(s.startSlots, s.minStartSlots, now, s.pressureThreshold)
	}
	s.throttled = slots < s.startSlots
	return slots - len(s.starting)
}

// assignStartSlots assigns free start slots in the order of Compare.
func (s *state) assignStartSlots() {
	if len(s.queue) == 0 {
		return
	}
	s.sort(s.queue)
	for s.freeStartSlots() > 0 && len(s.queue) > 0 {
		r := s.queue[0]
		s.queue = s.queue[1:]
		s.starting[r.Pod.UID] = time.Now()
		r.reply(plan.Verdict{State: plan.Admitted})
	}
	for i := range s.queue {
		s.queue[i].reply(queuedVerdict(i, s.startSlots, s.throttled))
	}
}

// queuedVerdict returns the verdict for a pod at a position in the queue. The position is rounded
// so that a start does not update every queued pod.
func queuedVerdict(position, slots int, throttled bool) plan.Verdict {
	place := "next in the queue"
	if position > 0 {
		place = fmt.Sprintf("fewer than %d pods are ahead", 1<<bits.Len(uint(position)))
	}
	limit := fmt.Sprintf("at most %d pods start at once", slots)
	if throttled {
		limit += ", fewer while the CPUs are under pressure"
	}
	return plan.Verdict{
		State: plan.Wait, Reason: "StartQueued",
		Message: fmt.Sprintf("waiting for a start slot, %s: %s", limit, place),
	}
}

// expireStartSlots releases start slots that are held for too long, for example during a slow image
// pull.
func (s *state) expireStartSlots() {
	for uid, since := range s.starting {
		if time.Since(since) >= s.startTimeout {
			delete(s.starting, uid)
		}
	}
}

func (s *state) nextExpiry() (next time.Time) {
	if len(s.queue) == 0 {
		return time.Time{}
	}
	if s.throttled {
		next = time.Now().Add(pressureInterval)
	}
	for _, since := range s.starting {
		if at := since.Add(s.startTimeout); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
