package allocator

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/plan"
)

func TestStartSlotsUnderPressure(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		what          string
		most, least   int
		stalled, from float64
		want          int
	}{
		{"no pressure: all slots", 10, 1, 0, 80, 10},
		{"all slots up to the threshold", 10, 1, 80, 80, 10},
		{"fewer above it", 10, 1, 90, 80, 5},
		{"rounded up", 10, 1, 91, 80, 5},
		{"one slot at 100%", 10, 1, 100, 80, 1},
		{"one slot above 100%", 10, 1, 130, 80, 1},
		{"one slot is never reduced", 1, 1, 99, 80, 1},
		{"a threshold of 100 disables it", 10, 1, 100, 100, 10},
		{"the minimum at 100%", 10, 3, 100, 80, 3},
		{"at most all slots", 2, 3, 100, 80, 2},
		{"the default minimum is one", 10, 0, 100, 80, 1},
		{"a threshold of 0 counts all pressure", 10, 1, 50, 0, 5},
	} {
		if got := StartSlotsUnderPressure(row.most, row.least, row.stalled, row.from); got != row.want {
			t.Errorf("%s: %d, want %d", row.what, got, row.want)
		}
	}
	for most := 1; most <= 20; most++ {
		for from := 0.0; from <= 100; from += 5 {
			last := most
			for stalled := 0.0; stalled <= 110; stalled++ {
				n := StartSlotsUnderPressure(most, 2, stalled, from)
				if n < min(2, most) || n > last {
					t.Fatalf("StartSlotsUnderPressure(%d, 2, %v, %v) is %d after %d", most, stalled, from, n, last)
				}
				last = n
			}
		}
	}
}

// TestScenario07_FewerStartsUnderCPUPressure starts with one of four slots. The others become
// available as the pressure decreases.
func TestScenario07_FewerStartsUnderCPUPressure(t *testing.T) {
	var stalled atomic.Int64
	stalled.Store(100)
	c := Config{Node: largeNode(), StartSlots: 4, StartTimeout: time.Hour,
		CPUPressure: func() (float64, bool) { return float64(stalled.Load()), true }, CPUPressureThreshold: 80}
	runAllocator(t, c, func(t *testing.T, l *testAllocator) {
		started := func() (n int) {
			for i := range 6 {
				if v, _ := l.lastVerdict(podOf(fmt.Sprint("p", i), "a")); v.State == plan.Admitted {
					n++
				}
			}
			return n
		}
		for i := range 6 {
			l.submit(podOf(fmt.Sprint("p", i), "a"), false)
		}
		if n := started(); n != 1 {
			t.Errorf("%d started under full pressure, want 1", n)
		}
		if v, _ := l.lastVerdict(podOf("p5", "a")); v.Reason != "StartQueued" ||
			!strings.Contains(v.Message, "at most 4 pods start at once, fewer while the CPUs are under pressure") {
			t.Errorf("the last pod has %+v", v)
		}
		for _, step := range []struct {
			stalled int64
			want    int
		}{{96, 1}, {90, 2}, {81, 4}, {100, 4}} {
			stalled.Store(step.stalled)
			time.Sleep(2 * pressureInterval)
			if n := started(); n != step.want {
				t.Errorf("at %d%% %d pods started, want %d", step.stalled, n, step.want)
			}
		}
		for i := range 4 { // under full pressure one after the other
			l.ReleaseStartSlot(podOf(fmt.Sprint("p", i), "a").UID)
			if n, want := started(), []int{4, 4, 4, 5}[i]; n != want {
				t.Errorf("%d pods started after %d releases, want %d", n, i+1, want)
			}
		}
		stalled.Store(0)
		time.Sleep(2 * pressureInterval)
		if v, _ := l.lastVerdict(podOf("p5", "a")); v.State != plan.Admitted {
			t.Errorf("the last pod has %+v without pressure", v)
		}
	})
}
