package allocator

import (
	"math"
	"time"
)

// Pressed says how many of most pods may be starting at once while tasks wait for a
// CPU in so many percent of the time: all up to from, then ever fewer, at 100 least.
func Pressed(most, least int, stalled, from float64) int {
	if stalled <= from || from >= 100 {
		return most
	}
	left := (100 - min(stalled, 100)) / (100 - from)
	return min(most, max(1, least, int(math.Ceil(float64(most)*left))))
}

// lookAgain is how often it is looked whether the CPUs are still under pressure, while
// anybody waits for that.
const lookAgain = time.Second

// free is how many start slots there are now. The CPUs are asked only if anybody waits
// for a slot that they could take away.
func (f *floor) free() int {
	f.fewer = false
	if f.stalled == nil || len(f.queue) == 0 || len(f.starting) == 0 {
		return f.slots - len(f.starting)
	}
	slots := f.slots
	if now, known := f.stalled(); known {
		slots = Pressed(f.slots, f.least, now, f.from)
	}
	f.fewer = slots < f.slots
	return slots - len(f.starting)
}
