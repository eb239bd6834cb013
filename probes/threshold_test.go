package probes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

var day = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// recordRuns simulates a probe and formats its runs: the time in seconds, then "+" for a success, "-"
// for a failure, s and f for a success and a failure that are not counted, and u for an unknown
// result. Changes of the result by thresholds are in brackets.
func recordRuns(c probeState, until time.Duration, takes time.Duration, result func(at time.Duration) Result) string {
	var out []string
	for now := c.due; !now.After(day.Add(until)); now = c.due {
		at := now.Sub(day)
		was := c.passed
		r := result(at)
		counted := c.record(r, "x", now, now.Add(takes))
		mark := map[Result]string{Success: "+", Warning: "+", Failure: "-", Unknown: "u"}[r]
		if !counted {
			mark = map[Result]string{Success: "s", Warning: "s", Failure: "f", Unknown: "u"}[r]
		}
		text := fmt.Sprintf("%g%s", at.Seconds(), mark)
		if c.passed != nil && (was == nil || *was != *c.passed) {
			text += fmt.Sprintf("[%v]", *c.passed)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func between(from, to float64, is, other Result) func(time.Duration) Result {
	return func(at time.Duration) Result {
		if at.Seconds() >= from && at.Seconds() < to {
			return is
		}
		return other
	}
}

func TestProbeState(t *testing.T) {
	spec := func(period, success, failure int32, command bool) *corev1.Probe {
		p := &corev1.Probe{PeriodSeconds: period, SuccessThreshold: success, FailureThreshold: failure}
		if command {
			p.Exec = &corev1.ExecAction{}
		}
		return p
	}
	for _, c := range []struct {
		name   string
		spec   *corev1.Probe
		until  float64
		takes  time.Duration
		result func(time.Duration) Result
		want   string
	}{
		{"a first success is enough", spec(10, 1, 3, false), 0, 0, between(0, 99, Success, Failure), "0+[true]"},
		{"until then it runs after 50, 100, 200 … ms", spec(10, 1, 3, false), 1, 0, between(0.12, 99, Success, Failure),
			"0f 0.05f 0.15+[true]"},
		{"up to the period, and counts once per period", spec(1, 1, 3, false), 4, 0, between(0, 99, Failure, Failure),
			"0f 0.05f 0.15f 0.35f 0.75f 1- 2- 3-[false] 4-"},
		{"a container fails after failureThreshold × periodSeconds, not earlier", spec(2, 1, 1, false), 2, 0,
			between(0, 99, Failure, Failure),
			"0f 0.05f 0.15f 0.35f 0.75f 1.55f 2-[false]"},
		{"a command keeps its period", spec(1, 1, 2, true), 3, 0, between(0, 99, Failure, Failure),
			"0f 1- 2-[false] 3-"},
		{"after the first success it has its own phase and keeps its period", spec(4, 1, 3, false), 10, 0,
			between(0, 99, Success, Failure), "0+[true] 1+ 5+ 9+"},
		{"failures in a row count", spec(1, 1, 3, false), 5.25, 0, between(0, 1.5, Success, Failure),
			"0+[true] 0.25+ 1.25+ 2.25- 3.25- 4.25-[false] 5.25-"},
		{"a success resets the failures", spec(1, 1, 3, false), 6.25, 0, between(3, 4, Success, Failure),
			"0f 0.05f 0.15f 0.35f 0.75f 1- 2- 3+[true] 3.25+ 4.25- 5.25- 6.25-[false]"},
		{"flapping below the threshold changes nothing", spec(1, 1, 2, false), 6.25, 0, func(at time.Duration) Result {
			if at > time.Second && int(at.Seconds())%2 == 0 {
				return Failure
			}
			return Success
		}, "0+[true] 0.25+ 1.25+ 2.25- 3.25+ 4.25- 5.25+ 6.25-"},
		{"two successes in a row are a period apart", spec(1, 2, 1, false), 3, 0, between(0, 99, Success, Failure),
			"0+ 1+[true] 2+ 3+"},
		{"a failure resets the successes", spec(1, 2, 1, false), 4, 0, between(1, 2, Failure, Success),
			"0+ 1-[false] 2+ 3+[true] 4+"},
		{"a run with an error is not counted and repeated early", spec(1, 1, 1, true), 1, 0,
			between(0, 0.3, Unknown, Success), "0u 0.05u 0.15u 0.35+[true] 0.6+"},
		{"a run longer than the period is repeated immediately", spec(1, 1, 9, true), 7, 1500 * time.Millisecond,
			between(0, 99, Failure, Failure), "0- 1.5- 3- 4.5- 6-"},
		{"a run in progress at the time from which failures count is counted", spec(2, 1, 2, false), 4,
			1100 * time.Millisecond, between(0, 99, Failure, Failure), "0f 1.15- 2.35f 3.65-[false]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := recordRuns(
				newState(plan.ReadinessProbe, thresholdsOf(c.spec, 0.25), day, 0, day),
				time.Duration(c.until*float64(time.Second)),
				c.takes,
				c.result,
			)
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestNotEarlierThanSpec checks the time of failure of a probe that never succeeds, for all
// combinations of periods, thresholds and handlers.
func TestNotEarlierThanSpec(t *testing.T) {
	for period := int32(1); period <= 5; period++ {
		for failure := int32(1); failure <= 4; failure++ {
			for _, command := range []bool{false, true} {
				spec := &corev1.Probe{PeriodSeconds: period, FailureThreshold: failure}
				if command {
					spec.Exec = &corev1.ExecAction{}
				}
				c := newState(plan.LivenessProbe, thresholdsOf(spec, 0.5), day, 0, day)
				dead := time.Duration(0)
				for c.passed == nil {
					dead = c.due.Add(3 * time.Millisecond).Sub(day)
					c.record(Failure, "", c.due, c.due.Add(3*time.Millisecond))
				}
				least := time.Duration(period*failure) * time.Second
				if dead < least {
					t.Errorf("period %d, threshold %d, exec %v: failed after %s", period, failure, command, dead)
				}
			}
		}
	}
}

func TestProbeStateResumes(t *testing.T) {
	r := thresholdsOf(&corev1.Probe{PeriodSeconds: 10, FailureThreshold: 3}, 0.25)
	c := newState(plan.LivenessProbe, r, day, 0, day)
	c.record(Success, "", day, day)
	at := func(s float64) time.Time { return day.Add(time.Duration(s * float64(time.Second))) }
	for c.due.Before(at(20)) {
		c.record(Failure, "down", c.due, c.due)
	}
	if c.Consecutive != 2 || c.OK || c.due != at(22.5) {
		t.Fatalf("%+v", c)
	}
	// Restarted at 15 s: the phase and the count are kept. A failure of the immediate run is not
	// counted.
	got := recordRuns(resumeState(c.ProbeState, r, c.passed, at(15)), 40*time.Second, 0,
		between(0, 99, Failure, Failure))
	if want := "15.25f 22.5-[false] 32.5-"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	got = recordRuns(resumeState(c.ProbeState, r, c.passed, at(15)), 30*time.Second, 0,
		between(0, 99, Success, Success))
	if want := "15.25+ 22.5+"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Three consecutive successes span two periods, also with a restart.
	three := thresholdsOf(&corev1.Probe{PeriodSeconds: 10, SuccessThreshold: 3}, 0.25)
	for _, s := range []struct {
		until float64 // lifetime of the first process
		want  string
	}{
		{0, "3.25s 10+ 20+[true] 30+"},
		{10, "13.25s 20+[true] 30+"},
		{20, "23.25+ 30+"},
	} {
		c := newState(plan.ReadinessProbe, three, day, 0, day)
		for !c.due.After(at(s.until)) {
			c.record(Success, "", c.due, c.due)
		}
		got := recordRuns(
			resumeState(c.ProbeState, three, c.passed, at(s.until+3)),
			30*time.Second,
			0,
			between(0, 99, Success, Failure),
		)
		if got != s.want {
			t.Errorf("restarted after %g s: got  %s\nwant %s", s.until+3, got, s.want)
		}
	}
	// The clock was set back by a day. This does not delay the next run.
	if c := resumeState(c.ProbeState, r, nil, at(-86400)); c.due.After(at(-86400 + 10)) {
		t.Errorf("next run after %s, want at most 10s", c.due.Sub(at(-86400)))
	}
}

// TestFirstRunIgnoresClockChanges checks that the remaining delay never exceeds the initial delay,
// whatever the recorded start time is, and that later comparisons use the monotonic clock.
func TestFirstRunIgnoresClockChanges(t *testing.T) {
	now := time.Now()
	wall := now.Round(0)
	for name, c := range map[string]struct {
		started time.Time
		want    time.Duration
	}{
		"just now":                      {wall, 5 * time.Second},
		"two seconds ago":               {wall.Add(-2 * time.Second), 3 * time.Second},
		"long ago":                      {wall.Add(-time.Hour), 0},
		"before the clock was set back": {wall.Add(time.Hour), 5 * time.Second},
		"at an unknown time":            {time.Time{}, 0},
	} {
		b := newState(plan.LivenessProbe, thresholds{period: time.Second}, c.started, 5*time.Second, now)
		if got := b.due.Sub(now); got != c.want {
			t.Errorf("started %s: due after %s, want %s", name, got, c.want)
		}
		if !monotonic(b.due) || !monotonic(b.Phase) || !monotonic(b.countsFrom) {
			t.Errorf("started %s: a time has no monotonic reading", name)
		}
	}
	r := resumeState(
		plan.ProbeState{Kind: plan.LivenessProbe, Phase: wall.Add(-time.Minute)},
		thresholds{period: time.Second},
		nil,
		now,
	)
	if !monotonic(r.Phase) || !monotonic(r.countsFrom) {
		t.Error("a time of the resumed state has no monotonic reading")
	}
}

// monotonic reports whether a time has a monotonic clock reading.
func monotonic(at time.Time) bool { return strings.Contains(at.String(), " m=") }

func TestPhaseSpread(t *testing.T) {
	var buckets [10]int
	for i := range 500 {
		x := phaseSpread("uid", fmt.Sprintf("c%03d", i), plan.ReadinessProbe)
		if x <= 0 || x > 1 || x != phaseSpread("uid", fmt.Sprintf("c%03d", i), plan.ReadinessProbe) {
			t.Fatal(x)
		}
		buckets[min(int(x*10), 9)]++
	}
	for i, n := range buckets {
		if n < 30 || n > 70 {
			t.Errorf("got %d of 500 probes in tenth %d of the period, want 30 to 70", n, i)
		}
	}
}
