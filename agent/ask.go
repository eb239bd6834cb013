package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// ErrPodNotFound says that the pod has no worker: it is not here, or not any more.
var ErrPodNotFound = errors.New("no such pod on this node")

// requestTimeout is how long a user waits for an answer at most, askSyncBound how much of
// that for the disk: it is his word that would be lost.
const (
	requestTimeout     = 30 * time.Second
	requestSaveTimeout = 20 * time.Second
)

// request is a user's wish for containers of a pod to run anew, or for one more. It is
// kept on disk before it is carried out, so that an agent that dies meanwhile goes
// on with it, and before it is answered.
type request struct {
	names     []string
	apply     func(plan.Input, []string) (plan.Memory, error)
	persisted bool // it is on disk
	reply     chan<- error
}

// RestartContainers has the named containers of a pod run anew, all of its mains and
// sidecars without names: see plan.AskRestart. It returns when that is on disk
// and begun.
func (a *Agent) RestartContainers(ctx context.Context, uid types.UID, names []string) error {
	return a.askWorker(ctx, uid, func(e *entry, reply chan<- error) {
		e.inbox.put(func(p *messages) {
			p.requests = append(p.requests, request{names: names, apply: plan.AskRestart, reply: reply})
		})
	})
}

// askWorker hands a pod's worker something that it answers, from the loop.
func (a *Agent) askWorker(ctx context.Context, uid types.UID, f func(*entry, chan<- error)) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	reply := make(chan error, 1)
	a.call(ctx, func() {
		if e, known := a.workers[uid]; known && !e.ending {
			f(e, reply)
			return
		}
		reply <- ErrPodNotFound
	})
	select {
	case err := <-reply:
		return err
	case <-a.left:
		return errors.New("the agent leaves")
	case <-ctx.Done():
		return fmt.Errorf("ask the pod's worker: %w", ctx.Err())
	}
}

// handleRequests takes in what users ask of the pod, once what there is of it is known.
func (w *worker) handleRequests(ctx context.Context) {
	if !w.state.canDecide() {
		return
	}
	asks := w.requests
	w.requests = nil
	for _, a := range asks {
		w.handleRequest(ctx, a)
	}
}

// handleRequest puts what is asked for first onto the disk, then into the memory that the
// next decision is made with. The pod with one container more is the wish already.
func (w *worker) handleRequest(ctx context.Context, a request) {
	b := w.state
	memory, err := a.apply(b.planInput(w.now(), w.limits), a.names)
	switch {
	case err != nil:
		a.reply <- err
	case !a.persisted:
		wish, verdict := b.desired, b.persistentVerdict()
		w.ops.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, requestSaveTimeout)
			defer cancel()
			if err := w.sync(ctx, wish, verdict, memory); err != nil { // it is carried out all the same
				w.log.Debug("what a user asks for is not on disk", "err", err)
			}
			a.persisted = true
			w.inbox.put(func(p *messages) { p.requests = append(p.requests, a) })
		})
	default:
		b.memory = memory
		maps.DeleteFunc(b.failures, func(_ plan.OpKey, f plan.Failure) bool { return f.HoldsBack(a.names) })
		a.reply <- nil
	}
}

// AddEphemeralContainer puts an ephemeral container into a running pod, and returns when it
// is on disk. It stays for as long as the pod does, also over a restart of the
// agent. The error says by field what is wrong with it.
func (a *Agent) AddEphemeralContainer(ctx context.Context, uid types.UID, c corev1.EphemeralContainer) error {
	return a.askWorker(ctx, uid, func(e *entry, reply chan<- error) {
		if s, known := a.StatusCache.Get(uid); known && (isTerminal(s.Status.Phase) || !s.Memory.Finished.IsZero()) {
			reply <- fmt.Errorf("pod %s is over: what its containers had to do is done", e.pod.Name)
			return
		}
		pod := e.pod.DeepCopy()
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, c)
		podspec.SetDefaults(pod)
		if errs := podspec.Validate(pod); len(errs) > 0 {
			reply <- fmt.Errorf("the ephemeral container cannot be added: %w", errs.ToAggregate())
			return
		}
		added := pod.Spec.EphemeralContainers[len(pod.Spec.EphemeralContainers)-1]
		a.desired.ephemeral[uid] = append(a.desired.ephemeral[uid], added)
		pod = a.desired.withEphemeralContainers(e.pod)
		if a.desired.wanted[uid] != nil {
			a.desired.wanted[uid] = pod
		}
		e.pod = pod
		e.Update(Desired{Pod: pod})
		e.inbox.put(func(p *messages) {
			p.requests = append(p.requests, request{names: []string{added.Name}, apply: plan.AskMore, reply: reply})
		})
	})
}
