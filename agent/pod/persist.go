package pod

import (
	"context"
	"maps"
	"reflect"
	"time"

	"berth/agent/plan"
)

// saveTimeout bounds the wait for a record that an action or a changed readiness requires. A hanging
// disk must not keep pods from starting or terminating: the sync pass or the action continues, and the
// store reports the failure. On a full or failing disk, and while the disk hangs, the wait ends at once.
const saveTimeout = 10 * time.Second

// saveRecord passes the record to the store if it has changed. It does not wait.
func (w *Worker) saveRecord(p plan.Plan) {
	s := w.state
	verdict := s.persistentVerdict()
	r := Record{Pod: s.desired.Pod, Verdict: verdict, Memory: p.Memory}
	now := savedState{desired: s.desired, refs: s.refs, memory: p.Memory}
	if verdict.State == plan.Admitted || verdict.State == plan.Rejected { // others are requested again
		now.verdict = verdict.State
	}
	if w.saved.equal(now) {
		return
	}
	w.saved = now
	w.agent.Save(r)
}

// savedState is the part of the last saved record whose changes must be saved.
type savedState struct {
	desired Desired
	verdict plan.VerdictState
	memory  plan.Memory
	refs    map[plan.Ref]plan.Version
}

func (a savedState) equal(b savedState) bool {
	return a.desired == b.desired && a.verdict == b.verdict && maps.Equal(a.refs, b.refs) &&
		reflect.DeepEqual(a.memory, b.memory)
}

// durability implements the durability contract of one plan.
type durability struct {
	plan                plan.Plan
	memory, termination *durableRecord
}

// durability returns the records that the plan's actions require. The record of a
// termination is shared with the later passes that have the same one: once it is
// on disk, no cleanup action waits for it again.
func (w *Worker) durability(p plan.Plan) durability {
	d := durability{plan: p, memory: w.newDurableRecord()}
	if end := p.Memory.Termination; end != nil {
		if w.terminationRecord == nil || w.terminationRecord.termination != *end {
			w.terminationRecord = w.newDurableRecord()
			w.terminationRecord.termination = *end
		}
		d.termination = w.terminationRecord
	}
	return d
}

// before returns the record that the action has to wait for. Nil: none.
func (d durability) before(a plan.Action) func(context.Context) {
	switch d.plan.Requires(a) {
	case plan.MemoryOnDisk:
		return d.memory.wait
	case plan.TerminationOnDisk:
		return d.termination.wait
	default:
		return nil
	}
}

// durableRecord is a record that must be on disk. The store already has it, so that a
// flush makes it durable.
type durableRecord struct {
	termination plan.Termination // of the record shared by passes
	flush       func(context.Context) error
	flushing    chan struct{} // holds an element while an action flushes
	settled     bool          // flushed, or the attempt took too long; owned by the element of flushing
}

func (w *Worker) newDurableRecord() *durableRecord {
	return &durableRecord{flushing: make(chan struct{}, 1), flush: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, saveTimeout)
		defer cancel()
		err := w.agent.Flush(ctx)
		if err != nil {
			w.log.Debug("required record not on disk", "err", err)
		}
		return err
	}}
}

// wait returns when the record is on disk, after the timeout, or when ctx ends. One caller flushes. If its ctx
// ends meanwhile, the next one does.
func (d *durableRecord) wait(ctx context.Context) {
	select {
	case d.flushing <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-d.flushing }()
	if !d.settled {
		err := d.flush(ctx)
		d.settled = err == nil || ctx.Err() == nil
	}
}

// persistHealth waits for the disk before a changed readiness is published, if
// the plan requires that: after a restart the agent must not report
// the previous readiness.
func (w *Worker) persistHealth(ctx context.Context, p plan.Plan) {
	if !p.MemoryBeforeStatus {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := w.agent.Flush(ctx); err != nil {
		w.log.Debug("readiness not on disk", "err", err)
	}
}
