package pod

import (
	"context"
	"maps"
	"time"

	"berth/agent/plan"
)

// requestSaveTimeout is how long a user request waits for the disk at most.
const requestSaveTimeout = 20 * time.Second

// request is a user's request to restart containers, or to run an added one. It
// is on disk before it is executed and answered, so that a restarted agent continues
// with it.
type request struct {
	names     []string
	apply     func(plan.Input, []string) (plan.Memory, error)
	persisted bool
	reply     chan<- error // capacity 1
}

// Restart restarts the named containers, or without names all app and sidecar
// containers, see plan.RequestRestart. The reply channel needs a capacity of 1. It
// receives nil when the request is on disk and in effect, or an error.
func (w *Worker) Restart(names []string, reply chan<- error) {
	w.inbox.put(func(m *messages) {
		m.requests = append(m.requests, request{names: names, apply: plan.RequestRestart, reply: reply})
	})
}

// RunAdded replies, like Restart, when a desired state with one more ephemeral
// container, which was sent by Update before, is on disk and in effect.
func (w *Worker) RunAdded(name string, reply chan<- error) {
	w.inbox.put(func(m *messages) {
		m.requests = append(m.requests, request{names: []string{name}, apply: plan.KeepMemory, reply: reply})
	})
}

// handleRequests handles pending requests. The observed state must be current.
func (w *Worker) handleRequests(ctx context.Context) {
	if !w.state.canDecide() {
		return
	}
	requests := w.requests
	w.requests = nil
	for _, r := range requests {
		w.handleRequest(ctx, r)
	}
}

// handleRequest saves a request to disk and then applies it to the memory for the next
// decision. An added container is already in the desired
// pod.
func (w *Worker) handleRequest(ctx context.Context, r request) {
	s := w.state
	memory, err := r.apply(s.planInput(w.now(), w.Limits), r.names)
	switch {
	case err != nil:
		r.reply <- err
	case !r.persisted:
		record := Record{Pod: s.desired.Pod, Verdict: s.persistentVerdict(), Memory: memory}
		w.ops.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestSaveTimeout)
			defer cancel()
			w.agent.Save(record)
			if err := w.agent.Flush(ctx); err != nil { // executed nevertheless
				w.log.Debug("user request not on disk", "err", err)
			}
			r.persisted = true
			w.inbox.put(func(m *messages) { m.requests = append(m.requests, r) })
		})
	default:
		s.memory = memory
		maps.DeleteFunc(s.failures, func(_ plan.ActionKey, f plan.Failure) bool { return f.DelaysStartOf(r.names) })
		r.reply <- nil
	}
}
