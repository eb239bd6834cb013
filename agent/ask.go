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

// ErrNotHere says that the pod has no worker: it is not here, or not any more.
var ErrNotHere = errors.New("no such pod on this node")

// askBound is how long a user waits for an answer at most, askSyncBound how much of
// that for the disk: it is his word that would be lost.
const (
	askBound     = 30 * time.Second
	askSyncBound = 20 * time.Second
)

// ask is a user's wish for containers of a pod to run anew, or for one more. It is
// kept on disk before it is carried out, so that an agent that dies meanwhile goes
// on with it, and before it is answered.
type ask struct {
	names []string
	of    func(plan.Input, []string) (plan.Memory, error)
	kept  bool // it is on disk
	reply chan<- error
}

// Restart has the named containers of a pod run anew, all of its mains and
// sidecars without names: see plan.AskRestart. It returns when that is on disk
// and begun.
func (a *Agent) Restart(ctx context.Context, uid types.UID, names []string) error {
	return a.askWorker(ctx, uid, func(e *entry, reply chan<- error) {
		e.mail.put(func(p *post) { p.asks = append(p.asks, ask{names: names, of: plan.AskRestart, reply: reply}) })
	})
}

// askWorker hands a pod's worker something that it answers, from the loop.
func (a *Agent) askWorker(ctx context.Context, uid types.UID, f func(*entry, chan<- error)) error {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	reply := make(chan error, 1)
	a.call(ctx, func() {
		if e, known := a.workers[uid]; known && !e.ending {
			f(e, reply)
			return
		}
		reply <- ErrNotHere
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

// answer takes in what users ask of the pod, once what there is of it is known.
func (w *worker) answer(ctx context.Context) {
	if !w.book.mayDecide() {
		return
	}
	asks := w.asks
	w.asks = nil
	for _, a := range asks {
		w.takeOn(ctx, a)
	}
}

// takeOn puts what is asked for first onto the disk, then into the memory that the
// next decision is made with. The pod with one container more is the wish already.
func (w *worker) takeOn(ctx context.Context, a ask) {
	b := w.book
	memory, err := a.of(b.input(w.now(), w.limits), a.names)
	switch {
	case err != nil:
		a.reply <- err
	case !a.kept:
		wish, verdict := b.wish, b.lasting()
		w.ops.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askSyncBound)
			defer cancel()
			if err := w.sync(ctx, wish, verdict, memory); err != nil { // it is carried out all the same
				w.log.Debug("what a user asks for is not on disk", "err", err)
			}
			a.kept = true
			w.mail.put(func(p *post) { p.asks = append(p.asks, a) })
		})
	default:
		b.memory = memory
		maps.DeleteFunc(b.failed, func(_ plan.OpKey, f plan.Failure) bool { return f.HoldsBack(a.names) })
		a.reply <- nil
	}
}

// AddEphemeral puts an ephemeral container into a running pod, and returns when it
// is on disk. It stays for as long as the pod does, also over a restart of the
// agent. The error says by field what is wrong with it.
func (a *Agent) AddEphemeral(ctx context.Context, uid types.UID, c corev1.EphemeralContainer) error {
	return a.askWorker(ctx, uid, func(e *entry, reply chan<- error) {
		if s, known := a.Board.Get(uid); known && (isTerminal(s.Status.Phase) || !s.Memory.Finished.IsZero()) {
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
		a.store.added[uid] = append(a.store.added[uid], added)
		pod = a.store.dressed(e.pod)
		if a.store.wanted[uid] != nil {
			a.store.wanted[uid] = pod
		}
		e.pod = pod
		e.Want(Wish{Pod: pod})
		e.mail.put(func(p *post) {
			p.asks = append(p.asks, ask{names: []string{added.Name}, of: plan.AskMore, reply: reply})
		})
	})
}
