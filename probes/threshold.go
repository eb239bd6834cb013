package probes

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// This file is pure: no clock, lock, goroutine or log.

// Result is how one probe has ended.
type Result int

const (
	Unknown Result = iota // it could not be made: counts for nothing
	Success
	Warning // a success that users are told about
	Failure
)

func (r Result) String() string {
	return [...]string{"unknown", "success", "warning", "failure"}[r]
}

// firstPause is the first of the pauses between two early probes; each is twice
// the one before.
const firstPause = 50 * time.Millisecond

// rule is what a probe's spec says about counting and time.
type rule struct {
	period           time.Duration
	success, failure int32
	early            bool    // runs again soon until it has succeeded
	spread           float64 // in (0, 1]: where in the period its phase is
}

// ruleOf reads a spec that has its defaults. A command costs too much to be run
// early.
func ruleOf(spec *corev1.Probe, spread float64) rule {
	return rule{
		period:  time.Duration(max(spec.PeriodSeconds, 1)) * time.Second,
		success: max(spec.SuccessThreshold, 1), failure: max(spec.FailureThreshold, 1),
		early: spec.Exec == nil, spread: spread,
	}
}

// course is one probe of one container instance from its first run to its last.
//
//	begun ──failure──► begun, again soon; counts once per period
//	  └──success──► once ──► every period
type course struct {
	rule
	plan.Probed
	due    time.Time     // of the next run
	counts time.Time     // a failure that was known before counts for nothing, nor does a success in a row
	pause  time.Duration // after the last early run
	passed *bool         // what the thresholds say; nil: nothing yet
}

// begin is the course of a probe that has never run, of a container that started
// then. From here on time is reckoned from now: a clock that is set changes nothing.
func begin(kind plan.ProbeKind, r rule, started time.Time, delay time.Duration, now time.Time) course {
	due := now
	if !started.IsZero() { // one that starts in the future was started before the clock was set back
		due = now.Add(min(max(delay-now.Sub(started), 0), delay))
	}
	return course{rule: r, Probed: plan.Probed{Kind: kind, Phase: due}, due: due, counts: due.Add(r.period)}
}

// resume is a course that another process has begun. It runs soon, whatever the
// time, and keeps its phase: a failure counts when it would have been due, and so
// does a success that others of its row went before.
func resume(p plan.Probed, r rule, passed *bool, now time.Time) course {
	c := course{rule: r, Probed: p, passed: passed}
	if c.Phase.IsZero() || c.Phase.After(now.Add(r.period)) { // the clock was set back
		c.Phase = now
	}
	c.Phase = now.Add(c.Phase.Sub(now)) // see begin
	c.due = now.Add(time.Duration(c.spread * float64(min(r.period, time.Second))))
	c.counts = c.slot(now)
	if !c.counts.After(c.due) {
		c.due = c.counts
	}
	return c
}

// slot is the first moment of the probe's phase that is later than t.
func (c *course) slot(t time.Time) time.Time {
	if t.Before(c.Phase) {
		return c.Phase
	}
	since := t.Sub(c.Phase)
	return t.Add(c.period - since%c.period)
}

// took takes in the end of a run that began and ended then, and says when the
// next is due. It reports whether the result has counted.
func (c *course) took(r Result, output string, began, ended time.Time) (counted bool) {
	switch r {
	case Success, Warning:
		return c.succeeded(began, ended)
	case Failure:
		return c.failed(output, began, ended)
	default: // again soon, as if it had not been made
		c.due = c.soon(ended, ended.Add(c.period))
		return false
	}
}

// succeeded counts a success, unless it came too soon after the one before it in a
// row that is not complete: as the first run after a restart may.
func (c *course) succeeded(began, ended time.Time) (counted bool) {
	c.pause = 0
	if c.Once && c.OK && c.Run < c.success && ended.Before(c.counts) {
		c.due = c.counts
		return false
	}
	if !c.Once {
		c.Once = true
		c.Phase = ended.Add(c.period)
		if c.success == 1 { // else the next success would count too soon
			c.Phase = ended.Add(time.Duration(c.spread * float64(c.period)))
		}
	}
	c.count(true, c.success, "")
	c.counts = c.slot(began)
	c.due = later(c.counts, ended)
	return true
}

// failed counts what was known to fail when a failure was due to count. A run
// that began before and was under way then counts like one that began then.
func (c *course) failed(output string, began, ended time.Time) (counted bool) {
	if ended.Before(c.counts) {
		c.due = later(c.counts, ended)
		if c.early && !c.Once {
			c.due = c.soon(ended, c.due)
		}
		return false
	}
	c.count(false, c.failure, output)
	c.counts = c.slot(later(began, c.counts))
	if c.early && !c.Once {
		c.due = c.soon(ended, later(c.counts, ended))
	} else {
		c.due = later(c.slot(began), ended)
	}
	return true
}

// count adds a result to those like it in a row.
func (c *course) count(ok bool, threshold int32, output string) {
	if c.Run == 0 || c.OK != ok {
		c.OK, c.Run = ok, 0
	}
	if c.Run < threshold {
		c.Run++
		c.Probed.Failure = output // later ones may say the same in other words
	}
	if c.Run >= threshold {
		c.passed = &ok
	}
}

// soon is when a run that is not due yet is made anyway; at most by then.
func (c *course) soon(now, by time.Time) time.Time {
	c.pause = min(max(2*c.pause, firstPause), c.period)
	if at := now.Add(c.pause); at.Before(by) {
		return at
	}
	return by
}

// missed is how many runs fell out because this one began so late.
func (c *course) missed(began time.Time) int64 {
	return int64(max(began.Sub(c.due), 0) / c.period)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
