package probes

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// This file is pure: it has no clock, lock, goroutine or log.

// Result is the result of one run.
type Result int

const (
	Unknown Result = iota // the probe could not run; not counted
	Success
	Warning // a success that is reported as an event
	Failure
)

func (r Result) String() string {
	return [...]string{"unknown", "success", "warning", "failure"}[r]
}

// firstPause is the first backoff between early runs. It doubles with each run.
const firstPause = 50 * time.Millisecond

// thresholds are the thresholds and the timing of a probe.
type thresholds struct {
	period           time.Duration
	success, failure int32
	early            bool    // repeat soon until the first success
	spread           float64 // in (0, 1]: phase within the period
}

// thresholdsOf reads a spec with defaults. Exec probes are too expensive to repeat early.
func thresholdsOf(spec *corev1.Probe, spread float64) thresholds {
	return thresholds{
		period:  time.Duration(max(spec.PeriodSeconds, 1)) * time.Second,
		success: max(spec.SuccessThreshold, 1), failure: max(spec.FailureThreshold, 1),
		early: spec.Exec == nil, spread: spread,
	}
}

// probeState is the state of a probe of one container instance from its first run to its last.
//
//	new ──failure──► new, repeated early; counts once per period
//	  └──success──► once ──► every period
type probeState struct {
	thresholds
	plan.ProbeState
	due        time.Time     // next run
	countsFrom time.Time     // earlier failures are not counted, nor are earlier successes of a series
	backoff    time.Duration // after the last early run
	passed     *bool         // result by thresholds; nil: none yet
}

// newState returns the state of a probe that has never run, of a container with the given start
// time. Later times are relative to now, so that changes of the wall clock have no effect.
func newState(kind plan.ProbeKind, r thresholds, started time.Time, delay time.Duration, now time.Time) probeState {
	due := now
	if !started.IsZero() { // a start in the future means that the clock was set back
		due = now.Add(min(max(delay-now.Sub(started), 0), delay))
	}
	return probeState{thresholds: r, ProbeState: plan.ProbeState{Kind: kind, Phase: due}, due: due,
		countsFrom: due.Add(r.period)}
}

// resumeState continues a probe of an earlier run of the agent. It runs soon and keeps its phase: a
// failure counts when the next run would have been due, and so does a success within a series.
func resumeState(p plan.ProbeState, r thresholds, passed *bool, now time.Time) probeState {
	c := probeState{thresholds: r, ProbeState: p, passed: passed}
	if c.Phase.IsZero() || c.Phase.After(now.Add(r.period)) { // the clock was set back
		c.Phase = now
	}
	c.Phase = now.Add(c.Phase.Sub(now)) // see newState
	c.due = now.Add(time.Duration(c.spread * float64(min(r.period, time.Second))))
	c.countsFrom = c.nextSlot(now)
	if !c.countsFrom.After(c.due) {
		c.due = c.countsFrom
	}
	return c
}

// nextSlot returns the first time of the probe's phase after t.
func (c *probeState) nextSlot(t time.Time) time.Time {
	if t.Before(c.Phase) {
		return c.Phase
	}
	since := t.Sub(c.Phase)
	return t.Add(c.period - since%c.period)
}

// record records a run and schedules the next one. It reports whether the result was counted.
func (c *probeState) record(r Result, output string, began, ended time.Time) (counted bool) {
	switch r {
	case Success, Warning:
		return c.succeeded(began, ended)
	case Failure:
		return c.failed(output, began, ended)
	default: // repeat soon, as if it had not run
		c.due = c.retrySoon(ended, ended.Add(c.period))
		return false
	}
}

// succeeded counts a success, unless it follows too soon after the previous one of an incomplete
// series, as the first run after a restart may.
func (c *probeState) succeeded(began, ended time.Time) (counted bool) {
	c.backoff = 0
	if c.Succeeded && c.OK && c.Consecutive < c.success && ended.Before(c.countsFrom) {
		c.due = c.countsFrom
		return false
	}
	if !c.Succeeded {
		c.Succeeded = true
		c.Phase = ended.Add(c.period)
		if c.success == 1 { // otherwise the next success would count too soon
			c.Phase = ended.Add(time.Duration(c.spread * float64(c.period)))
		}
	}
	c.count(true, c.success, "")
	c.countsFrom = c.nextSlot(began)
	c.due = later(c.countsFrom, ended)
	return true
}

// failed counts a failure that ended after countsFrom. A run that started earlier counts like one
// that started at countsFrom.
func (c *probeState) failed(output string, began, ended time.Time) (counted bool) {
	if ended.Before(c.countsFrom) {
		c.due = later(c.countsFrom, ended)
		if c.early && !c.Succeeded {
			c.due = c.retrySoon(ended, c.due)
		}
		return false
	}
	c.count(false, c.failure, output)
	c.countsFrom = c.nextSlot(later(began, c.countsFrom))
	if c.early && !c.Succeeded {
		c.due = c.retrySoon(ended, later(c.countsFrom, ended))
	} else {
		c.due = later(c.nextSlot(began), ended)
	}
	return true
}

// count adds a result to its series.
func (c *probeState) count(ok bool, threshold int32, output string) {
	if c.Consecutive == 0 || c.OK != ok {
		c.OK, c.Consecutive = ok, 0
	}
	if c.Consecutive < threshold {
		c.Consecutive++
		c.ProbeState.Failure = output // keep it stable: later outputs may vary
	}
	if c.Consecutive >= threshold {
		c.passed = &ok
	}
}

// retrySoon returns the time of an early run, at most by.
func (c *probeState) retrySoon(now, by time.Time) time.Time {
	c.backoff = min(max(2*c.backoff, firstPause), c.period)
	if at := now.Add(c.backoff); at.Before(by) {
		return at
	}
	return by
}

// missed returns the number of runs that were skipped because this one started late.
func (c *probeState) missed(began time.Time) int64 {
	return int64(max(began.Sub(c.due), 0) / c.period)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
