package allocator

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"berth/agent/plan"
)

// StartSlotsUnderPressure says how many of most pods may be starting at once while tasks wait for a
// CPU in so many percent of the time: all up to from, then ever fewer, at 100 least.
func StartSlotsUnderPressure(most, least int, stalled, from float64) int {
	if stalled <= from || from >= 100 {
		return most
	}
	left := (100 - min(stalled, 100)) / (100 - from)
	return min(most, max(1, least, int(math.Ceil(float64(most)*left))))
}

// pressureInterval is how often it is looked whether the CPUs are still under pressure, while
// anybody waits for that.
const pressureInterval = time.Second

// freeStartSlots is how many start slots there are now. The CPUs are asked only if anybody waits
// for a slot that they could take away.
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

// assignStartSlots hands out free start slots: critical pods, then priority, then age.
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

// queuedVerdict is the answer to a pod with so many before it. The number is told
// roughly, or every start would wake everybody who waits.
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

// expireStartSlots takes the slot of a start that takes too long: a slow pull must not
// hold up the node.
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
