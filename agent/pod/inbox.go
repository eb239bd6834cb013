package pod

import (
	"context"
	"sync"
	"time"

	"berth/agent/plan"
)

// inbox collects messages to a worker. Sending never blocks.
type inbox struct {
	mu       sync.Mutex
	messages messages
	ready    chan struct{} // capacity 1
}

// messages is everything sent since the worker last read its inbox.
type messages struct {
	desired        *Desired
	events         []RuntimeEvent
	verdicts       []admissionResult
	termination    *plan.Termination // requested by the allocator
	outcomes       []plan.Outcome
	observations   []observation
	images         *imageCheck
	health         map[string]plan.Health
	imagesImported bool // images were imported without a pull
	reconnected    bool // the runtime is reachable again: retry what failed while it was not
	audit          *observation
	requests       []request
}

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (i *inbox) put(f func(*messages)) {
	i.mu.Lock()
	f(&i.messages)
	i.mu.Unlock()
	select {
	case i.ready <- struct{}{}:
	default:
	}
}

func (i *inbox) take() messages {
	i.mu.Lock()
	defer i.mu.Unlock()
	m := i.messages
	i.messages = messages{}
	return m
}

// The methods below send a message. Any goroutine may call them. They do not wait for the
// worker.

// Update replaces the desired state. A termination that the worker has not read
// yet is kept.
func (w *Worker) Update(d Desired) {
	w.inbox.put(func(m *messages) {
		if d.Termination == nil && m.desired != nil {
			d.Termination = m.desired.Termination
		}
		m.desired = &d
	})
}

// preempt terminates the pod in favor of another one. The allocator calls it.
func (w *Worker) preempt(e plan.Termination) {
	e.RequestedAt = time.Now()
	w.inbox.put(func(m *messages) { m.termination = &e })
}

// Notify sends an event of the runtime.
func (w *Worker) Notify(e RuntimeEvent) {
	w.inbox.put(func(m *messages) {
		if len(m.events) >= 64 { // a burst: one observation replaces the details
			m.events = []RuntimeEvent{{Incomplete: true}}
		}
		m.events = append(m.events, e)
	})
}

// Sync requests a sync pass.
func (w *Worker) Sync() { w.inbox.put(func(*messages) {}) }

// ImagesImported reports that images were imported on the node without a pull.
func (w *Worker) ImagesImported() { w.inbox.put(func(m *messages) { m.imagesImported = true }) }

// RuntimeReconnected reports that the runtime is reachable again.
func (w *Worker) RuntimeReconnected() { w.inbox.put(func(m *messages) { m.reconnected = true }) }

// Audit sends the pod's part of a listing of the runtime that started at the given time.
func (w *Worker) Audit(started time.Time, l Listing) {
	w.inbox.put(func(m *messages) {
		m.audit = &observation{started: started, sandboxes: l.Sandboxes, containers: l.Containers}
	})
}

// handleMessages applies the messages to the state, in the order of their causes.
func (w *Worker) handleMessages(ctx context.Context, m messages) {
	s := w.state
	if m.desired != nil {
		w.handleDesired(ctx, *m.desired)
	}
	if m.termination != nil && s.desired.Pod != nil && s.desired.Termination == nil {
		s.setDesired(Desired{Pod: s.desired.Pod, Termination: m.termination})
	}
	for _, r := range m.verdicts {
		if r.State == plan.Rejected && s.verdict.State != plan.Rejected && s.verdict.State != plan.Admitted {
			w.metrics.podRejected(r.Reason)
		}
		s.applyVerdict(r)
		if s.rejectedBeforeEdit(r) {
			w.agent.Recreate(ctx, Edited)
		}
	}
	for _, r := range m.outcomes {
		w.handleOutcome(ctx, r)
	}
	for _, e := range m.events {
		s.applyEvent(e, w.now())
	}
	for _, o := range m.observations {
		w.observing = false
		w.handleObservation(o)
	}
	if m.images != nil {
		w.checkingImages = false
		s.applyImages(m.images.images, m.images.at)
	}
	w.imagesImported = w.imagesImported || m.imagesImported
	if w.imagesImported && !w.checkingImages && s.everObserved {
		w.imagesImported = false
		w.checkImages(ctx, s.observed.MissingImages(s.desired.Pod))
	}
	if m.health != nil {
		w.applyHealth(m.health)
	}
	if m.reconnected {
		s.clearUnavailable()
	}
	if m.audit != nil {
		w.handleAudit(*m.audit)
	}
	w.requests = append(w.requests, m.requests...)
	w.handleRequests(ctx)
}

// handleDesired applies a newer desired state. The edit of a finished pod from a
// file recreates it.
func (w *Worker) handleDesired(ctx context.Context, d Desired) {
	recreate := w.state.mustRecreate(d)
	w.state.setDesired(d)
	if recreate {
		w.agent.Recreate(ctx, Edited)
	}
}
