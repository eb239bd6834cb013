package allocator

import (
	"math"
	"time"
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
