package pressure

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const mi, gi = int64(1) << 20, int64(1) << 30

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// readingAt returns a reading at a time after the start, of a node with 4 GiB of memory, a disk of
// 100 GiB and 1000 processes, all free except for the changes of edit.
func readingAt(after time.Duration, edit func(*Reading)) Reading {
	r := Reading{At: start.Add(after), Levels: map[Signal]Level{
		MemoryAvailable: {
			4 * gi,
			4 * gi,
		},
		NodefsAvailable:  {100 * gi, 100 * gi},
		NodefsInodesFree: {1000, 1000},
		PIDAvailable:     {1000, 1000},
	}, MemoryEstimates: map[Signal]MemoryEstimate{MemoryAvailable: {Name: "MemAvailable", Available: 4 * gi}}}
	if edit != nil {
		edit(&r)
	}
	return r
}

// memory sets both memory sources.
func memory(available, second int64) func(*Reading) {
	return func(r *Reading) {
		r.Levels[MemoryAvailable] = Level{available, 4 * gi}
		r.MemoryEstimates[MemoryAvailable] = MemoryEstimate{Name: "MemAvailable", Available: second}
	}
}

func disk(available int64) func(*Reading) {
	return func(r *Reading) { r.Levels[NodefsAvailable] = Level{available, 100 * gi} }
}

// format formats an evaluation: the conditions, then the thresholds to reclaim.
func format(v Evaluation) string {
	var parts []string
	for _, p := range v.Pressures {
		parts = append(parts, string(p.Condition))
	}
	for _, m := range v.Reclaim {
		parts = append(parts, "reclaim "+m.String())
	}
	for _, m := range v.Unconfirmed {
		parts = append(parts, "doubt "+m.String())
	}
	return strings.Join(parts, "; ")
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	hardMemory := Threshold{Signal: MemoryAvailable, Hard: true, Quantity: 100 * mi}
	softMemory := Threshold{Signal: MemoryAvailable, Quantity: 500 * mi, GracePeriod: time.Minute}
	hardDisk := Threshold{Signal: NodefsAvailable, Hard: true, Percent: 10, MinReclaim: 5 * gi}
	const by = " (by the working set and by MemAvailable, "
	for _, row := range []struct {
		sentence string
		config   Config
		looks    []Reading
		want     []string
	}{
		{"enough of every resource", Config{Thresholds: []Threshold{hardMemory, hardDisk}},
			[]Reading{readingAt(0, nil)}, []string{""}},
		{"exactly the threshold is enough", Config{Thresholds: []Threshold{hardMemory}},
			[]Reading{readingAt(0, memory(100*mi, 100*mi))}, []string{""}},
		{
			"hard is acted on at once, and lasts for the transition period", Config{Thresholds: []Threshold{hardMemory},
				TransitionPeriod: 5 * time.Minute},
			[]Reading{readingAt(0, memory(90*mi, 80*mi)), readingAt(10*time.Second, nil),
				readingAt(309*time.Second, nil), readingAt(5*time.Minute, nil)},
			[]string{"MemoryPressure; reclaim memory.available is 90Mi, less than 100Mi" + by + "80Mi)",
				"MemoryPressure", "", ""},
		},
		{
			"soft is a pressure at once, and acted on after its grace", Config{Thresholds: []Threshold{softMemory},
				TransitionPeriod: time.Minute},
			[]Reading{readingAt(0, memory(400*mi, 400*mi)), readingAt(59*time.Second, memory(400*mi, 400*mi)),
				readingAt(time.Minute, memory(400*mi, 400*mi))},
			[]string{"MemoryPressure", "MemoryPressure",
				"MemoryPressure; reclaim memory.available is 400Mi, less than 500Mi" + by + "400Mi)"},
		},
		{
			"a break restarts the grace period", Config{Thresholds: []Threshold{softMemory},
				TransitionPeriod: time.Hour},
			[]Reading{readingAt(0, memory(400*mi, 400*mi)), readingAt(50*time.Second, nil),
				readingAt(55*time.Second, memory(400*mi, 400*mi)), readingAt(114*time.Second, memory(400*mi, 400*mi))},
			[]string{"MemoryPressure", "MemoryPressure", "MemoryPressure", "MemoryPressure"},
		},
		{
			"reclaiming continues up to the minimum reclaim", Config{Thresholds: []Threshold{hardDisk}},
			[]Reading{readingAt(0, disk(11*gi)), readingAt(1, disk(9*gi)), readingAt(2, disk(14*gi)),
				readingAt(3, disk(15*gi)), readingAt(4, disk(14*gi))},
			[]string{"", "DiskPressure; reclaim nodefs.available is 9Gi, less than 10Gi",
				"DiskPressure; reclaim nodefs.available is 14Gi, less than 15Gi", "", ""},
		},
		{
			"memory before disk, hard before soft", Config{Thresholds: []Threshold{hardDisk, softMemory, hardMemory}},
			[]Reading{readingAt(0, func(r *Reading) {
				memory(90*mi, 90*mi)(r)
				disk(gi)(r)
			}), readingAt(time.Minute, func(r *Reading) { memory(90*mi, 90*mi)(r); disk(gi)(r) })},
			[]string{
				"DiskPressure; MemoryPressure; reclaim memory.available is 90Mi, less than 100Mi" + by +
					"90Mi); reclaim nodefs.available is 1Gi, less than 10Gi",
				"DiskPressure; MemoryPressure; reclaim memory.available is 90Mi, less than 100Mi" + by +
					"90Mi); reclaim memory.available is 90Mi, less than 500Mi" + by +
					"90Mi); reclaim nodefs.available is 1Gi, less than 15Gi",
			},
		},
		{
			"page cache causes no pressure", Config{Thresholds: []Threshold{hardMemory}},
			[]Reading{readingAt(0, memory(90*mi, 900*mi))},
			[]string{"doubt memory.available is 90Mi, less than 100Mi (by the working set only: " +
				"MemAvailable is 900Mi)"},
		},
		{
			"unless only the working set is evaluated", Config{Thresholds: []Threshold{hardMemory},
				WorkingSetOnly: true}, []Reading{readingAt(0, memory(90*mi, 900*mi))},
			[]string{"MemoryPressure; reclaim memory.available is 90Mi, less than 100Mi (by the working set only, as " +
				"configured)"},
		},
		{
			"or tasks wait for memory", Config{Thresholds: []Threshold{hardMemory}},
			[]Reading{readingAt(0, func(r *Reading) {
				memory(90*mi, 900*mi)(r)
				r.MemoryEstimates[MemoryAvailable] = MemoryEstimate{Name: "MemAvailable", Available: 900 * mi,
					HasPSI: true, StalledPercent: 12.5}
			})},
			[]string{"MemoryPressure; reclaim memory.available is 90Mi, less than 100Mi (by the working set and by " +
				"memory stalls, 12.5% of the last 10 s)"},
		},
		{
			"or there is no second source", Config{Thresholds: []Threshold{hardMemory}},
			[]Reading{readingAt(0, func(r *Reading) {
				memory(90*mi, 0)(r)
				r.MemoryEstimates = nil
			})},
			[]string{"MemoryPressure; reclaim memory.available is 90Mi, less than 100Mi (by the working set only: no " +
				"other source)"},
		},
		{
			"MemAvailable alone causes no pressure", Config{Thresholds: []Threshold{hardMemory}},
			[]Reading{readingAt(0, memory(900*mi, 9*mi))}, []string{""},
		},
		{
			"processes", Config{Thresholds: []Threshold{{Signal: PIDAvailable, Hard: true, Percent: 5}}},
			[]Reading{readingAt(0, func(r *Reading) { r.Levels[PIDAvailable] = Level{49, 1000} })},
			[]string{"PIDPressure; reclaim pid.available is 49, less than 50"},
		},
		{
			"a third file system has the thresholds of nodefs", Config{Thresholds: []Threshold{hardDisk}},
			[]Reading{readingAt(0, func(r *Reading) {
				r.Layout = FileSystemLayout{DedicatedImageFs: true, SplitContainerFs: true}
				r.Levels[ContainerfsAvailable] = Level{gi, 20 * gi}
			})},
			[]string{"DiskPressure; reclaim containerfs.available is 1Gi, less than 2Gi"},
		},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			var s State
			for i, r := range row.looks {
				var v Evaluation
				s, v = row.config.Evaluate(s, r)
				if got := format(v); got != row.want[i] {
					t.Errorf("reading %d: %q, want %q", i, got, row.want[i])
				}
			}
		})
	}
}

// random returns a reading with random and partly unreadable levels.
type random struct {
	*rand.Rand
	at time.Time
}

func (r *random) config() Config {
	c := Config{TransitionPeriod: time.Duration(r.IntN(600)) * time.Second, WorkingSetOnly: r.IntN(4) == 0}
	for _, s := range []Signal{MemoryAvailable, NodefsAvailable, NodefsInodesFree, ImagefsAvailable, PIDAvailable} {
		for _, hard := range []bool{true, false} {
			if r.IntN(3) == 0 {
				continue
			}
			t := Threshold{Signal: s, Hard: hard, Percent: float64(r.IntN(50))}
			if r.IntN(2) == 0 {
				t.Quantity = int64(1 + r.IntN(500))
			}
			if r.IntN(2) == 0 {
				t.MinReclaim = int64(r.IntN(100))
			}
			if !hard {
				t.GracePeriod = time.Duration(1+r.IntN(120)) * time.Second
			}
			c.Thresholds = append(c.Thresholds, t)
		}
	}
	return c
}

func (r *random) readingAt() Reading {
	r.at = r.at.Add(time.Duration(1+r.IntN(60)) * time.Second)
	out := Reading{At: r.at, Levels: map[Signal]Level{}, MemoryEstimates: map[Signal]MemoryEstimate{}}
	for _, s := range []Signal{MemoryAvailable, NodefsAvailable, NodefsInodesFree, ImagefsAvailable, PIDAvailable} {
		if r.IntN(8) > 0 {
			out.Levels[s] = Level{int64(r.IntN(1000)), 1000}
		}
	}
	if r.IntN(5) > 0 {
		out.MemoryEstimates[MemoryAvailable] = MemoryEstimate{
			Name:           "MemAvailable",
			Available:      int64(r.IntN(1000)),
			HasPSI:         r.IntN(2) == 0,
			StalledPercent: float64(r.IntN(30)),
		}
	}
	return out
}

// crossed determines independently of Evaluate whether a threshold is met.
func crossed(c Config, t Threshold, r Reading, reclaim bool) (is, read bool) {
	level, read := r.Levels[t.Signal]
	least := t.Quantity
	if least == 0 {
		least = int64(float64(level.Capacity) * t.Percent / 100)
	}
	if reclaim {
		least += t.MinReclaim
	}
	is = read && level.Available < least
	if second, known := r.MemoryEstimates[t.Signal]; is && known && t.Signal == MemoryAvailable && !c.WorkingSetOnly {
		is = second.Available < least || second.HasPSI && second.StalledPercent >= 10
	}
	return is, read
}

// TestInvariants checks P1 to P6 for random nodes after every reading.
func TestInvariants(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := &random{Rand: rand.New(rand.NewPCG(seed, 7)), at: start}
			c := r.config()
			var s State
			since, acting := map[key]time.Time{}, map[key]bool{}
			last := map[corev1.NodeConditionType]time.Time{}
			for i := range 80 {
				reading := r.readingAt()
				before := s
				next, v := c.Evaluate(s, reading)
				if again, same := c.Evaluate(before, reading); !reflect.DeepEqual(next, again) ||
					!reflect.DeepEqual(v, same) {
					t.Fatalf("reading %d: two results for one input", i)
				}
				reclaim := map[key]bool{}
				for _, th := range c.Thresholds {
					is, read := crossed(c, th, reading, acting[th.key()])
					if !read { // P6
						if _, was := since[th.key()]; was {
							last[th.Signal.Condition()] = reading.At
						}
						reclaim[th.key()] = acting[th.key()]
						continue
					}
					if !is {
						delete(since, th.key())
						continue
					}
					if _, was := since[th.key()]; !was {
						since[th.key()] = reading.At
					}
					last[th.Signal.Condition()] = reading.At
					reclaim[th.key()] = th.Hard || reading.At.Sub(since[th.key()]) >= th.GracePeriod // P2
				}
				for _, m := range v.Reclaim {
					if !reclaim[m.key()] {
						t.Errorf("reading %d: %s requires reclaiming", i, m)
					}
				}
				for _, th := range c.Thresholds { // no due threshold is missing
					_, read := reading.Levels[th.Signal]
					if reclaim[th.key()] && read &&
						!slices.ContainsFunc(v.Reclaim, func(m ThresholdMet) bool { return m.key() == th.key() }) {
						t.Errorf("reading %d: %+v does not require reclaiming", i, th)
					}
				}
				for _, of := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure,
					corev1.NodePIDPressure} { // P1
					at, ever := last[of]
					want := ever && (at.Equal(reading.At) || reading.At.Sub(at) < c.TransitionPeriod)
					if v.Has(of) != want {
						t.Errorf("reading %d: %s is %t, last met %v ago with transition period %s", i, of, v.Has(of),
							reading.At.Sub(at), c.TransitionPeriod)
					}
				}
				if !v.RecheckAt.IsZero() && !v.RecheckAt.After(reading.At) { // P5
					t.Errorf("reading %d: RecheckAt is in the past", i)
				}
				acting, s = reclaim, next
				if !v.RecheckAt.IsZero() {
					early := reading
					early.At = v.RecheckAt.Add(-time.Nanosecond)
					if _, w := c.Evaluate(next, early); !slices.Equal(v.Conditions(), w.Conditions()) ||
						len(acting) > 0 &&
							!sameReclaim(c, next, reading, w) {
						t.Errorf("reading %d: time alone changed the result before RecheckAt", i)
					}
				}
			}
		})
	}
}

// sameReclaim compares the thresholds to reclaim of a later reading with the same levels with those of
// now.
func sameReclaim(c Config, s State, r Reading, later Evaluation) bool {
	_, now := c.Evaluate(s, r)
	keys := func(v Evaluation) (out []key) {
		for _, m := range v.Reclaim {
			out = append(out, m.key())
		}
		return out
	}
	return slices.Equal(keys(now), keys(later))
}

func TestEvaluateDoesNotModifyState(t *testing.T) {
	t.Parallel()
	c := Config{Thresholds: []Threshold{{Signal: NodefsAvailable, Hard: true, Percent: 10}},
		TransitionPeriod: time.Minute}
	s, _ := c.Evaluate(State{}, readingAt(0, disk(gi)))
	kept, same := c.Evaluate(State{}, readingAt(0, disk(gi)))
	_, _ = c.Evaluate(s, readingAt(time.Hour, nil))
	if !reflect.DeepEqual(s, kept) || !same.Has(corev1.NodeDiskPressure) {
		t.Errorf("the argument %+v was modified to %+v", kept, s)
	}
}

func TestSignalMessage(t *testing.T) {
	t.Parallel()
	c := Config{Thresholds: []Threshold{{Signal: NodefsAvailable, Hard: true, Percent: 10}}}
	r := Reading{Levels: map[Signal]Level{NodefsAvailable: {50 * mi, gi}, PIDAvailable: {7, 9}}}
	_, v := c.Evaluate(State{}, r)
	for s, want := range map[Signal]string{
		NodefsAvailable: "nodefs.available is 50Mi, less than 107374182",
		PIDAvailable:    "pid.available is 7, no threshold configured",
		MemoryAvailable: "memory.available is unknown",
	} {
		if got := c.SignalMessage(s, r, v); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := c.SignalMessage(NodefsAvailable, Reading{Levels: map[Signal]Level{NodefsAvailable: {gi, 10 * mi}}},
		Evaluation{}); got != "nodefs.available is 1Gi, minimum 1Mi" {
		t.Errorf("%q", got)
	}
}
