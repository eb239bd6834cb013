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
func (f *state) freeStartSlots() int {
	f.throttled = false
	if f.cpuPressure == nil || len(f.queue) == 0 || len(f.starting) == 0 {
		return f.startSlots - len(f.starting)
	}
	slots := f.startSlots
	if now, known := f.cpuPressure(); known {
		slots = StartSlotsUnderPressure(f.startSlots, f.minStartSlots, now, f.pressureThreshold)
	}
	f.throttled = slots < f.startSlots
	return slots - len(f.starting)
}

// assignStartSlots assigns free start slots in the order of Compare.
func (f *state) assignStartSlots() {
	if len(f.queue) == 0 {
		return
	}
	f.sort(f.queue)
	for f.freeStartSlots() > 0 && len(f.queue) > 0 {
		s := f.queue[0]
		f.queue = f.queue[1:]
		f.starting[s.Pod.UID] = time.Now()
		s.reply(plan.Verdict{State: plan.Admitted})
	}
	for i := range f.queue {
		f.queue[i].reply(queuedVerdict(i, f.startSlots, f.throttled))
	}
}

// queuedVerdict returns the verdict for a pod at a position in the queue. The position is rounded
// so that a start does not update every queued pod.
func queuedVerdict(before, slots int, fewer bool) plan.Verdict {
	words := "it is next"
	if before > 0 {
		words = fmt.Sprintf("fewer than %d others are before it", 1<<bits.Len(uint(before)))
	}
	most := fmt.Sprintf("at most %d pods start at once", slots)
	if fewer {
		most += ", fewer while the CPUs are under pressure"
	}
	return plan.Verdict{
		State: plan.Wait, Reason: "StartQueued",
		Message: fmt.Sprintf("waits for its turn, because %s: %s", most, words),
	}
}

// expireStartSlots releases start slots that are held for too long, for example during a slow image
// pull.
func (f *state) expireStartSlots() {
	for uid, since := range f.starting {
		if time.Since(since) >= f.startTimeout {
			delete(f.starting, uid)
		}
	}
}

func (f *state) nextExpiry() (next time.Time) {
	if len(f.queue) == 0 {
		return time.Time{}
	}
	if f.throttled {
		next = time.Now().Add(pressureInterval)
	}
	for _, since := range f.starting {
		if at := since.Add(f.startTimeout); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}
