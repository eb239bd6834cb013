package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Bounds that TimelineOptions may lower or raise. Together they keep the
// timeline of a usual pod at rest below 8 KiB.
const (
	DefaultMaxSpans     = 40
	DefaultMaxSpanBytes = 7 << 10
	defaultStartSpans   = 10
	spansPerContainer   = 6 // of one more container's start: what is made, its calls, its pull
	bytesPerSpan        = 180
	maxSpanText         = 256
)

// SpanID names a span within one timeline; 0 is none.
type SpanID uint32

// Span is something that took time while a pod was started, run or ended: a
// stage, a runtime call, a wait.
type Span struct {
	ID      SpanID    `json:"id"`
	Parent  SpanID    `json:"parent,omitempty"`
	Name    string    `json:"name"`            // what was done: RunSandbox, PullImage web, …
	Stage   string    `json:"stage,omitempty"` // prepare, admit, configure, cleanup, build-run
	Start   time.Time `json:"start"`
	End     time.Time `json:"end,omitzero"`      // zero: under way
	Cause   string    `json:"cause,omitempty"`   // why it was done or waited for
	Err     string    `json:"error,omitempty"`   // why it went wrong; no secrets
	Attempt uint32    `json:"attempt,omitempty"` // of the sandbox or container
}

func (s *Span) size() int { return len(s.Name) + len(s.Stage) + len(s.Cause) + len(s.Err) + 128 }

// TimelineOptions is what NewTimeline needs. Every zero field has a default.
type TimelineOptions struct {
	Now        func() time.Time // default time.Now
	MaxSpans   int              // spans kept, at least 4
	MaxBytes   int              // bytes kept
	StartSpans int              // of the spans kept, those that tell how the pod was started; default a quarter

	OnChange func() // told after every change, on the goroutine that made it; nil: nobody
}

// Timeline is the bounded list of the spans of one pod. It is safe for
// concurrent use. Make it with NewTimeline, or decode one from JSON.
type Timeline struct {
	opt TimelineOptions

	mu      sync.Mutex
	spans   []Span // by ID, which is by Start
	last    SpanID
	dropped int
	bytes   int
}

// OptionsForContainers are the options of a pod with n containers: its whole start is kept,
// however many they are.
func OptionsForContainers(n int, changed func()) TimelineOptions {
	more := max(n-1, 0) * spansPerContainer
	return TimelineOptions{
		MaxSpans: DefaultMaxSpans + more, MaxBytes: DefaultMaxSpanBytes + more*bytesPerSpan, StartSpans: defaultStartSpans + more, OnChange: changed,
	}
}

// NewTimeline returns an empty timeline.
func NewTimeline(o TimelineOptions) *Timeline {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.MaxSpans = max(cmp.Or(o.MaxSpans, DefaultMaxSpans), 4)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxSpanBytes)
	o.StartSpans = cmp.Or(o.StartSpans, o.MaxSpans/4)
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	return &Timeline{opt: o}
}

// Begin adds a span and returns its ID for End and for Parent. The ID of the
// argument is ignored; a zero Start is now. A span with an End is complete.
func (t *Timeline) Begin(s Span) SpanID {
	if s.Start.IsZero() {
		s.Start = t.opt.Now()
	}
	s.Name, s.Stage = truncate(s.Name, maxSpanText), truncate(s.Stage, maxSpanText)
	s.Cause, s.Err = truncate(s.Cause, maxSpanText), truncate(s.Err, maxSpanText)
	s.Start, s.End = wallTime(s.Start), wallTime(s.End)
	defer t.opt.OnChange() // after the lock is given back

	t.mu.Lock()
	defer t.mu.Unlock()
	return t.add(s)
}

// add appends a span and returns its ID.
func (t *Timeline) add(s Span) SpanID {
	t.last++
	s.ID = t.last
	if len(t.spans) == cap(t.spans) { // append would double: pods are many
		t.spans = append(make([]Span, 0, len(t.spans)+8), t.spans...)
	}
	t.spans = append(t.spans, s)
	t.bytes += s.size()
	t.enforceLimits()
	return s.ID
}

// End ends a span; err nil means well. A span that is unknown, dropped or ended
// is left as it is.
func (t *Timeline) End(id SpanID, err error) {
	now := wallTime(t.opt.Now())
	defer t.opt.OnChange()
	t.mu.Lock()
	defer t.mu.Unlock()
	i, ok := slices.BinarySearchFunc(t.spans, id, func(s Span, id SpanID) int { return cmp.Compare(s.ID, id) })
	if !ok || !t.spans[i].End.IsZero() {
		return
	}
	t.spans[i].End = now
	if err != nil {
		t.bytes -= len(t.spans[i].Err)
		t.spans[i].Err = truncate(err.Error(), maxSpanText)
		t.bytes += len(t.spans[i].Err)
		t.enforceLimits()
	}
}

// enforceLimits drops from the middle: the first spans tell how the pod was started, the
// last are the newest. A stage goes with the calls that it made.
func (t *Timeline) enforceLimits() {
	keep := t.opt.StartSpans
	for len(t.spans) > keep+1 && (len(t.spans) > t.opt.MaxSpans || t.bytes > t.opt.MaxBytes) {
		at := keep
		for at < len(t.spans)-1 && t.spans[at].Parent != 0 && t.spans[at].Parent <= t.spans[keep-1].ID {
			at++ // its stage is kept
		}
		if at == len(t.spans)-1 {
			at = keep
		}
		gone := t.spans[at].ID
		t.spans = slices.DeleteFunc(t.spans, func(s Span) bool {
			if s.ID != gone && s.Parent != gone {
				return false
			}
			t.bytes -= s.size()
			t.dropped++
			return true
		})
	}
}

// Spans returns a copy of the spans, oldest first, and how many were dropped.
func (t *Timeline) Spans() ([]Span, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.spans), t.dropped
}

// timelineJSON is the written form, version 1.
type timelineJSON struct {
	Version int    `json:"version"`
	Dropped int    `json:"dropped,omitempty"`
	Spans   []Span `json:"spans"`
}

// MarshalJSON writes the form that `berth timeline -o json` shows and the local
// store keeps.
func (t *Timeline) MarshalJSON() ([]byte, error) {
	spans, dropped := t.Spans()
	if spans == nil {
		spans = []Span{}
	}
	return json.Marshal(timelineJSON{Version: 1, Dropped: dropped, Spans: spans})
}

// UnmarshalJSON replaces the content by what MarshalJSON wrote. Spans that were
// under way stay without an end: the agent that would have ended them is gone.
func (t *Timeline) UnmarshalJSON(b []byte) error {
	var in timelineJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("read timeline: %w", err)
	}
	if in.Version != 1 {
		return fmt.Errorf("read timeline: version %d is not known", in.Version)
	}
	slices.SortStableFunc(in.Spans, func(a, b Span) int { return cmp.Compare(a.ID, b.ID) })
	in.Spans = slices.CompactFunc(in.Spans, func(a, b Span) bool { return a.ID == b.ID })

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opt.Now == nil {
		t.opt = TimelineOptions{Now: time.Now, MaxSpans: DefaultMaxSpans, MaxBytes: DefaultMaxSpanBytes, StartSpans: defaultStartSpans, OnChange: func() {}}
	}
	t.spans, t.dropped, t.bytes, t.last = in.Spans, in.Dropped, 0, 0
	for i := range t.spans {
		t.bytes += t.spans[i].size()
		t.last = max(t.last, t.spans[i].ID)
	}
	t.enforceLimits()
	return nil
}

// Restart is the time between two lives of the agent.
type Restart struct {
	StoppedAt time.Time // when the earlier life ended, as far as is known; zero: it is not
	StartedAt time.Time // of this life
	Cause     string    // how the earlier life ended
}

// restartSpan is the name of the span of a restart.
const restartSpan = "restart/agent"

// Resume goes on with a timeline of an earlier life of the agent: what was under
// way then is ended with a note, and the restart gets a span. Restarts between
// which nothing was done but to look share one, or those of a quiet pod would
// push out everything else.
func (t *Timeline) Resume(r Restart) {
	r.StartedAt = wallTime(r.StartedAt)
	if r.StoppedAt = wallTime(r.StoppedAt); r.StoppedAt.IsZero() || r.StoppedAt.After(r.StartedAt) {
		r.StoppedAt = r.StartedAt
	}
	defer t.opt.OnChange()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.spans {
		if s := &t.spans[i]; s.End.IsZero() {
			t.bytes -= s.size()
			s.End, s.Err = latest(s.Start, r.StoppedAt), "the agent ended before this did"
			t.bytes += s.size()
		}
	}
	span := Span{Name: restartSpan, Stage: "prepare", Start: r.StoppedAt, End: r.StartedAt, Cause: truncate(r.Cause, maxSpanText), Attempt: 1}
	last := len(t.spans)
	for last > 0 && t.spans[last-1].Name != restartSpan && t.spans[last-1].Stage == "prepare" {
		last--
	}
	if last > 0 && t.spans[last-1].Name == restartSpan {
		last--
		span.Attempt += t.spans[last].Attempt
		span.Cause = truncate(fmt.Sprintf("%s; restart %d with nothing done in between", r.Cause, span.Attempt), maxSpanText)
		for _, s := range t.spans[last:] {
			t.bytes -= s.size()
		}
		t.spans = slices.Delete(t.spans, last, len(t.spans))
	}
	t.add(span)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// wallTime drops the monotonic reading: spans outlive the process that made them.
func wallTime(t time.Time) time.Time { return t.Round(0) }
