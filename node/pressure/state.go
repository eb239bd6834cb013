package pressure

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Config says when a node is short of something.
type Config struct {
	Thresholds       []Threshold
	TransitionPeriod time.Duration // how long a pressure lasts at least after it was last seen
	// WorkingSetOnly has memory judged by the working set alone, as upstream does;
	// else the second source must agree.
	WorkingSetOnly bool
}

// State is what one look leaves for the next. It is a value: Step never changes
// the one that it is given. The zero State has seen nothing.
type State struct {
	since  map[key]time.Time                      // thresholds that are met without a break, and since when
	last   map[corev1.NodeConditionType]time.Time // when each pressure was last seen
	acting map[key]bool                           // asked for something at the last look: they want their reclaim too
}

// key tells thresholds apart: there is at most one hard and one soft per signal.
type key struct {
	signal Signal
	hard   bool
}

func (t Threshold) key() key { return key{t.Signal, t.Hard} }

// Evaluation is what a look has come to.
type Evaluation struct {
	Pressures   []Pressure     // the node is under, by name
	Reclaim     []ThresholdMet // past their grace, the most urgent first: something must be freed
	Unconfirmed []ThresholdMet // memory that only the working set says is short: nothing follows
	RecheckAt   time.Time      // when time alone changes the answer; zero: never
}

// Pressure is a condition of the node that is true.
type Pressure struct {
	Condition corev1.NodeConditionType
	Met       []ThresholdMet // what says so now; none: see Until
	Until     time.Time      // with none: it is over, and lasts until then; zero: what it was about cannot be read now
}

// Message tells it in one sentence without a full stop.
func (p Pressure) Message() string {
	switch {
	case len(p.Met) > 0:
		return p.Met[0].String()
	case p.Until.IsZero():
		return "what was short when it was last read cannot be read now"
	default:
		return "it was short a moment ago; it ends at " + p.Until.UTC().Format(time.RFC3339) + " unless it comes again"
	}
}

// Evaluate judges a look at the node.
func (c Config) Evaluate(was State, r Reading) (State, Evaluation) {
	now := State{since: map[key]time.Time{}, last: maps.Clone(was.last), acting: map[key]bool{}}
	if now.last == nil {
		now.last = map[corev1.NodeConditionType]time.Time{}
	}
	var v Evaluation
	var met []ThresholdMet
	for _, t := range slices.SortedFunc(slices.Values(c.withContainerfs(r)), order) {
		level, read := r.Levels[t.Signal]
		if !read { // not known: as it was
			now.keep(was, t, r.At)
			continue
		}
		m, is, doubted := c.met(t, level, r, was.acting[t.key()])
		if doubted {
			v.Unconfirmed = append(v.Unconfirmed, m)
		}
		if !is {
			continue
		}
		met = append(met, m)
		since, before := was.since[t.key()]
		if !before {
			since = r.At
		}
		now.since[t.key()] = since
		now.last[t.Signal.Condition()] = r.At
		if due := since.Add(t.GracePeriod); t.Hard || !r.At.Before(due) {
			v.Reclaim = append(v.Reclaim, m)
			now.acting[t.key()] = true
		} else {
			v.RecheckAt = sooner(v.RecheckAt, due)
		}
	}
	v.Pressures = c.pressures(&now, met, r.At, &v)
	return now, v
}

// keep carries over what is known of a threshold whose signal could not be read.
func (s *State) keep(was State, t Threshold, at time.Time) {
	since, before := was.since[t.key()]
	if !before {
		return
	}
	s.since[t.key()] = since
	s.last[t.Signal.Condition()] = at
	if was.acting[t.key()] {
		s.acting[t.key()] = true
	}
}

// met reports whether a threshold is met, and whether it would be if memory's
// second source agreed.
func (c Config) met(t Threshold, level Level, r Reading, acting bool) (m ThresholdMet, is, doubted bool) {
	m = ThresholdMet{Threshold: t, Level: level, Minimum: t.value(level.Capacity, acting)}
	if level.Available >= m.Minimum {
		return m, false, false
	}
	if t.Signal.Resource() != corev1.ResourceMemory {
		return m, true, false
	}
	second, known := r.MemoryEstimates[t.Signal]
	switch {
	case c.WorkingSetOnly:
		m.Source = "by the working set alone, as configured"
	case !known:
		m.Source = "by the working set alone: nothing else tells"
	case second.Available < m.Minimum:
		m.Source = fmt.Sprintf("by the working set and by %s, %s", second.Name, t.Signal.Format(second.Available))
	case second.HasPSI && second.StalledPercent >= stallBound:
		m.Source = fmt.Sprintf("by the working set and by stalls, %.1f%% of the last 10 s", second.StalledPercent)
	default:
		m.Source = fmt.Sprintf("by the working set alone: %s is %s", second.Name, t.Signal.Format(second.Available))
		return m, false, true
	}
	return m, true, false
}

// pressures are those that are met, and those that were within the transition
// period. What is over is forgotten.
func (c Config) pressures(now *State, met []ThresholdMet, at time.Time, v *Evaluation) (out []Pressure) {
	for _, of := range slices.Sorted(maps.Keys(now.last)) {
		p := Pressure{Condition: of}
		for _, m := range met {
			if m.Signal.Condition() == of {
				p.Met = append(p.Met, m)
			}
		}
		if len(p.Met) == 0 && !now.last[of].Equal(at) {
			p.Until = now.last[of].Add(c.TransitionPeriod)
			if !at.Before(p.Until) {
				delete(now.last, of)
				continue
			}
			v.RecheckAt = sooner(v.RecheckAt, p.Until)
		}
		out = append(out, p)
	}
	return out
}

// sooner is the earlier of two times; zero: never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// withContainerfs gives the file system that containers write to the thresholds of
// nodefs if it is neither that nor the images', and nobody gave it any.
func (c Config) withContainerfs(r Reading) []Threshold {
	given := slices.ContainsFunc(c.Thresholds, func(t Threshold) bool {
		return t.Signal == ContainerfsAvailable || t.Signal == ContainerfsInodesFree
	})
	if given || !r.Layout.SplitContainerFs {
		return c.Thresholds
	}
	all := slices.Clone(c.Thresholds)
	for _, t := range c.Thresholds {
		switch t.Signal {
		case NodefsAvailable:
			t.Signal = ContainerfsAvailable
		case NodefsInodesFree:
			t.Signal = ContainerfsInodesFree
		default:
			continue
		}
		all = append(all, t)
	}
	return all
}

// Has reports whether the node is under a pressure.
func (v Evaluation) Has(of corev1.NodeConditionType) bool {
	return slices.ContainsFunc(v.Pressures, func(p Pressure) bool { return p.Condition == of })
}

// Conditions names the pressures.
func (v Evaluation) Conditions() []corev1.NodeConditionType {
	var out []corev1.NodeConditionType
	for _, p := range v.Pressures {
		out = append(out, p.Condition)
	}
	return out
}

// AvailabilityMessage says how much there is of what a condition is about, for who asks while it
// is false.
func (c Config) AvailabilityMessage(of corev1.NodeConditionType, r Reading) string {
	var parts []string
	for _, t := range slices.SortedFunc(slices.Values(c.Thresholds), order) {
		if l, read := r.Levels[t.Signal]; read && t.Signal.Condition() == of {
			parts = append(parts, fmt.Sprintf("%s %s of at least %s", t.Signal, t.Signal.Format(l.Available), t.Signal.Format(t.value(l.Capacity, false))))
		}
	}
	if len(parts) == 0 {
		return "no threshold is set"
	}
	return strings.Join(parts, ", ")
}

// SignalMessage says in one sentence how a signal stands.
func (c Config) SignalMessage(s Signal, r Reading, v Evaluation) string {
	l, read := r.Levels[s]
	if !read {
		return fmt.Sprintf("%s is not known", s)
	}
	for _, p := range v.Pressures {
		for _, m := range p.Met {
			if m.Signal == s {
				return m.String()
			}
		}
	}
	text := fmt.Sprintf("%s is %s", s, s.Format(l.Available))
	for _, t := range slices.SortedFunc(slices.Values(c.withContainerfs(r)), order) {
		if t.Signal == s {
			return fmt.Sprintf("%s, of at least %s", text, s.Format(t.value(l.Capacity, false)))
		}
	}
	return text + "; no threshold is set"
}
