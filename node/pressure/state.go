package pressure

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Config contains the eviction thresholds.
type Config struct {
	Thresholds       []Threshold
	TransitionPeriod time.Duration // minimum duration of a pressure after it was last observed
	// WorkingSetOnly evaluates memory by the working set only, as upstream does. Otherwise the
	// second source must agree.
	WorkingSetOnly bool
}

// State is the result of an evaluation that the next one needs. It is a value: Evaluate does not
// modify its argument. The zero State is the initial one.
type State struct {
	since      map[key]time.Time                      // thresholds met without a break, and their start
	last       map[corev1.NodeConditionType]time.Time // when each pressure was last observed
	reclaiming map[key]bool                           // thresholds whose minimum reclaim applies
}

// key identifies a threshold: there is at most one hard and one soft threshold per signal.
type key struct {
	signal Signal
	hard   bool
}

func (t Threshold) key() key { return key{t.Signal, t.Hard} }

// Evaluation is the result of Evaluate.
type Evaluation struct {
	Pressures   []Pressure     // pressures of the node by name
	Reclaim     []ThresholdMet // thresholds past their grace period, most urgent first: resources must be reclaimed
	Unconfirmed []ThresholdMet // memory thresholds that only the working set meets: no effect
	RecheckAt   time.Time      // when the result changes without a new reading; zero: never
}

// Pressure is a pressure condition of the node.
type Pressure struct {
	Condition corev1.NodeConditionType
	Met       []ThresholdMet // thresholds that are met now; none: see Until
	Until     time.Time      // with no thresholds: end of the transition period; zero: the signal is unreadable
}

// Message describes the pressure in a sentence without a full stop.
func (p Pressure) Message() string {
	switch {
	case len(p.Met) > 0:
		return p.Met[0].String()
	case p.Until.IsZero():
		return "the signal is unreadable; the threshold was met at the last reading"
	default:
		return "the threshold is no longer met; the pressure ends at " + p.Until.UTC().Format(time.RFC3339)
	}
}

// Evaluate evaluates a reading.
func (c Config) Evaluate(was State, r Reading) (State, Evaluation) {
	now := State{since: map[key]time.Time{}, last: maps.Clone(was.last), reclaiming: map[key]bool{}}
	if now.last == nil {
		now.last = map[corev1.NodeConditionType]time.Time{}
	}
	var eval Evaluation
	var met []ThresholdMet
	for _, t := range slices.SortedFunc(slices.Values(c.withContainerfs(r)), compareUrgency) {
		level, read := r.Levels[t.Signal]
		if !read { // unreadable: unchanged
			now.carryOver(was, t, r.At)
			continue
		}
		m, is, unconfirmed := c.met(t, level, r, was.reclaiming[t.key()])
		if unconfirmed {
			eval.Unconfirmed = append(eval.Unconfirmed, m)
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
			eval.Reclaim = append(eval.Reclaim, m)
			now.reclaiming[t.key()] = true
		} else {
			eval.RecheckAt = earlier(eval.RecheckAt, due)
		}
	}
	eval.Pressures = c.pressures(&now, met, r.At, &eval)
	return now, eval
}

// carryOver keeps the state of a threshold whose signal is unreadable.
func (s *State) carryOver(was State, t Threshold, at time.Time) {
	since, before := was.since[t.key()]
	if !before {
		return
	}
	s.since[t.key()] = since
	s.last[t.Signal.Condition()] = at
	if was.reclaiming[t.key()] {
		s.reclaiming[t.key()] = true
	}
}

// met reports whether a threshold is met, or, as unconfirmed, whether only the second source of a
// memory signal disagrees.
func (c Config) met(t Threshold, level Level, r Reading, acting bool) (m ThresholdMet, is, unconfirmed bool) {
	m = ThresholdMet{Threshold: t, Level: level, Minimum: t.value(level.Capacity, acting)}
	if level.Available >= m.Minimum {
		return m, false, false
	}
	if t.Signal.Resource() != corev1.ResourceMemory {
		return m, true, false
	}
	estimate, known := r.MemoryEstimates[t.Signal]
	switch {
	case c.WorkingSetOnly:
		m.Source = "by the working set only, as configured"
	case !known:
		m.Source = "by the working set only: no other source"
	case estimate.Available < m.Minimum:
		m.Source = fmt.Sprintf("by the working set and by %s, %s", estimate.Name, t.Signal.Format(estimate.Available))
	case estimate.HasPSI && estimate.StalledPercent >= psiThreshold:
		m.Source = fmt.Sprintf("by the working set and by memory stalls, %.1f%% of the last 10 s",
			estimate.StalledPercent)
	default:
		m.Source = fmt.Sprintf("by the working set only: %s is %s", estimate.Name, t.Signal.Format(estimate.Available))
		return m, false, true
	}
	return m, true, false
}

// pressures returns the pressures that are met or within their transition period. Others are
// deleted from the state.
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
			v.RecheckAt = earlier(v.RecheckAt, p.Until)
		}
		out = append(out, p)
	}
	return out
}

// earlier returns the earlier of two times, where zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// withContainerfs applies the thresholds of nodefs to a separate container file system, unless
// thresholds are configured for it.
func (c Config) withContainerfs(r Reading) []Threshold {
	configured := slices.ContainsFunc(c.Thresholds, func(t Threshold) bool {
		return t.Signal == ContainerfsAvailable || t.Signal == ContainerfsInodesFree
	})
	if configured || !r.Layout.SplitContainerFs {
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

// Conditions returns the conditions of all pressures.
func (v Evaluation) Conditions() []corev1.NodeConditionType {
	var out []corev1.NodeConditionType
	for _, p := range v.Pressures {
		out = append(out, p.Condition)
	}
	return out
}

// AvailabilityMessage describes the available resources of a condition that is false.
func (c Config) AvailabilityMessage(of corev1.NodeConditionType, r Reading) string {
	var parts []string
	for _, t := range slices.SortedFunc(slices.Values(c.Thresholds), compareUrgency) {
		if l, read := r.Levels[t.Signal]; read && t.Signal.Condition() == of {
			parts = append(
				parts,
				fmt.Sprintf(
					"%s %s, minimum %s",
					t.Signal,
					t.Signal.Format(l.Available),
					t.Signal.Format(t.value(l.Capacity, false)),
				),
			)
		}
	}
	if len(parts) == 0 {
		return "no threshold configured"
	}
	return strings.Join(parts, ", ")
}

// SignalMessage describes a signal in a sentence.
func (c Config) SignalMessage(s Signal, r Reading, v Evaluation) string {
	l, read := r.Levels[s]
	if !read {
		return fmt.Sprintf("%s is unknown", s)
	}
	for _, p := range v.Pressures {
		for _, m := range p.Met {
			if m.Signal == s {
				return m.String()
			}
		}
	}
	text := fmt.Sprintf("%s is %s", s, s.Format(l.Available))
	for _, t := range slices.SortedFunc(slices.Values(c.withContainerfs(r)), compareUrgency) {
		if t.Signal == s {
			return fmt.Sprintf("%s, minimum %s", text, s.Format(t.value(l.Capacity, false)))
		}
	}
	return text + ", no threshold configured"
}
