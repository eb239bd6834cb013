package events

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Defaults of TimelineOptions. With them the timeline of an ordinary pod is smaller than 8 KiB.
const (
	DefaultMaxSpans     = 40
	DefaultMaxSpanBytes = 7 << 10
	defaultStartSpans   = 10
	spansPerContainer   = 6 // spans for the start of one more container: the start, its calls, its pull
	bytesPerSpan        = 180
	maxSpanText         = 256
)

// SpanID identifies a span of one timeline. 0 is none.
type SpanID uint32

// Span is a timed operation of a pod: a stage, a runtime call or a wait.
type Span struct {
	ID      SpanID    `json:"id"`
	Parent  SpanID    `json:"parent,omitempty"`
	Name    string    `json:"name"`            // RunSandbox, PullImage web, …
	Stage   string    `json:"stage,omitempty"` // prepare, admit, configure, cleanup, build-run
	Start   time.Time `json:"start"`
	End     time.Time `json:"end,omitzero"`      // zero: in progress
	Cause   string    `json:"cause,omitempty"`   // reason of the operation or the wait
	Err     string    `json:"error,omitempty"`   // error without secrets
	Attempt uint32    `json:"attempt,omitempty"` // of the sandbox or container
}

func (s *Span) size() int { return len(s.Name) + len(s.Stage) + len(s.Cause) + len(s.Err) + 128 }

// TimelineOptions are the options of NewTimeline. Every zero field has a default.
type TimelineOptions struct {
	Now        func() time.Time // default time.Now
	MaxSpans   int              // maximum number of spans, at least 4
	MaxBytes   int              // maximum size
	StartSpans int              // spans reserved for the start of the pod, default a quarter of MaxSpans

	OnChange func() // called after every change on the same goroutine, optional
}

// Timeline is a limited list of the spans of one pod. It is safe for concurrent use. NewTimeline or
// decoding from JSON creates it.
type Timeline struct {
	opt TimelineOptions

	mu      sync.Mutex
	spans   []Span // ordered by ID, and thereby by Start
	last    SpanID
	dropped int
	bytes   int
}

// OptionsForContainers returns options that keep the complete start of a pod with n containers.
func OptionsForContainers(n int, changed func()) TimelineOptions {
	more := max(n-1, 0) * spansPerContainer
	return TimelineOptions{
		MaxSpans: DefaultMaxSpans + more, MaxBytes: DefaultMaxSpanBytes + more*bytesPerSpan,
		StartSpans: defaultStartSpans + more, OnChange: changed,
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

// Begin adds a span and returns its ID for End and for Span.Parent. It ignores the ID of the
// argument. The default of Start is now. A span with an End is complete.
func (t *Timeline) Begin(s Span) SpanID {
	if s.Start.IsZero() {
		s.Start = t.opt.Now()
	}
	s.Name, s.Stage = truncate(s.Name, maxSpanText), truncate(s.Stage, maxSpanText)
	s.Cause, s.Err = truncate(s.Cause, maxSpanText), truncate(s.Err, maxSpanText)
	s.Start, s.End = wallTime(s.Start), wallTime(s.End)
	defer t.opt.OnChange() // runs after the unlock

	t.mu.Lock()
	defer t.mu.Unlock()
	return t.add(s)
}

// add appends a span and returns its ID.
func (t *Timeline) add(s Span) SpanID {
	t.last++
	s.ID = t.last
	if len(t.spans) == cap(t.spans) { // append would double the capacity for each of many pods
		t.spans = append(make([]Span, 0, len(t.spans)+8), t.spans...)
	}
	t.spans = append(t.spans, s)
	t.bytes += s.size()
	t.enforceLimits()
	return s.ID
}

// End ends a span. It ignores a span that is unknown, dropped or has ended.
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

// enforceLimits drops spans after those of the start and before the newest ones. A stage is dropped
// together with its calls.
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
		dropped := t.spans[at].ID
		t.spans = slices.DeleteFunc(t.spans, func(s Span) bool {
			if s.ID != dropped && s.Parent != dropped {
				return false
			}
			t.bytes -= s.size()
			t.dropped++
			return true
		})
	}
}

// Spans returns a copy of the spans, oldest first, and the number of dropped ones.
func (t *Timeline) Spans() ([]Span, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.spans), t.dropped
}

// timelineJSON is version 1 of the encoding.
type timelineJSON struct {
	Version int    `json:"version"`
	Dropped int    `json:"dropped,omitempty"`
	Spans   []Span `json:"spans"`
}

// MarshalJSON returns the encoding for `berth timeline -o json` and the local store.
func (t *Timeline) MarshalJSON() ([]byte, error) {
	spans, dropped := t.Spans()
	if spans == nil {
		spans = []Span{}
	}
	return json.Marshal(timelineJSON{Version: 1, Dropped: dropped, Spans: spans})
}

// UnmarshalJSON replaces the content. Spans that were in progress remain without an end.
func (t *Timeline) UnmarshalJSON(b []byte) error {
	var in timelineJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("read timeline: %w", err)
	}
	if in.Version != 1 {
		return fmt.Errorf("read timeline: unknown version %d", in.Version)
	}
	slices.SortStableFunc(in.Spans, func(a, b Span) int { return cmp.Compare(a.ID, b.ID) })
	in.Spans = slices.CompactFunc(in.Spans, func(a, b Span) bool { return a.ID == b.ID })

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opt.Now == nil {
		t.opt = TimelineOptions{Now: time.Now, MaxSpans: DefaultMaxSpans, MaxBytes: DefaultMaxSpanBytes,
			StartSpans: defaultStartSpans, OnChange: func() {}}
	}
	t.spans, t.dropped, t.bytes, t.last = in.Spans, in.Dropped, 0, 0
	for i := range t.spans {
		t.bytes += t.spans[i].size()
		t.last = max(t.last, t.spans[i].ID)
	}
	t.enforceLimits()
	return nil
}

// Restart is a restart of the agent.
type Restart struct {
	StoppedAt time.Time // last known time of the previous run, zero: unknown
	StartedAt time.Time // of this run
	Cause     string    // how the previous run ended
}

// restartSpan is the name of the span of a restart.
const restartSpan = "restart/agent"

// Resume continues the timeline of a previous run of the agent. Spans in progress end with an
// error, and a span for the restart is added. Successive restarts with only observations between
// them share one span, because otherwise they would displace all others of an idle pod.
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
			s.End, s.Err = latest(s.Start, r.StoppedAt), "the agent stopped before the operation finished"
			t.bytes += s.size()
		}
	}
	span := Span{Name: restartSpan, Stage: "prepare", Start: r.StoppedAt, End: r.StartedAt,
		Cause: truncate(r.Cause, maxSpanText), Attempt: 1}
	last := len(t.spans)
	for last > 0 && t.spans[last-1].Name != restartSpan && t.spans[last-1].Stage == "prepare" {
		last--
	}
	if last > 0 && t.spans[last-1].Name == restartSpan {
		last--
		span.Attempt += t.spans[last].Attempt
		span.Cause = truncate(fmt.Sprintf("%s; restart %d without actions in between", r.Cause, span.Attempt),
			maxSpanText)
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

// wallTime removes the monotonic reading, which is meaningless in another process.
func wallTime(t time.Time) time.Time { return t.Round(0) }
