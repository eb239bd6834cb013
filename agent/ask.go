package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// ErrNotHere says that the pod has no worker: it is not here, or not any more.
var ErrNotHere = errors.New("no such pod on this node")

// askBound is how long a user waits for an answer at most.
const askBound = 30 * time.Second

// ask is a user's wish for containers of a pod to run anew. It is kept on disk
// before it is carried out, so that an agent that dies meanwhile goes on with it.
type ask struct {
	names []string
	kept  bool // it is on disk
	reply chan<- error
}

// Restart has the named containers of a pod run anew, all of its mains and
// sidecars without names: see plan.AskRestart. It returns when that is on disk
// and begun.
func (a *Agent) Restart(ctx context.Context, uid types.UID, names []string) error {
	return a.askWorker(ctx, uid, func(e *entry, reply chan<- error) {
		e.mail.put(func(p *post) { p.asks = append(p.asks, ask{names: names, reply: reply}) })
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
		w.restart(ctx, a)
	}
}

// restart puts a restart that is asked for first onto the disk, then into the
// memory that the next decision is made with.
func (w *worker) restart(ctx context.Context, a ask) {
	b := w.book
	memory, err := plan.AskRestart(b.input(w.now(), w.limits), a.names)
	switch {
	case err != nil:
		a.reply <- err
	case !a.kept:
		wish, verdict := b.wish, b.lasting()
		w.ops.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, syncBound)
			defer cancel()
			if err := w.sync(ctx, wish, verdict, memory); err != nil { // it is carried out all the same
				w.log.Debug("restart not on disk", "err", err)
			}
			a.kept = true
			w.mail.put(func(p *post) { p.asks = append(p.asks, a) })
		})
	default:
		b.memory = memory
		b.retry(a.names)
		a.reply <- nil
	}
}

// retry drops the failures that keep the named containers, or all, from being
// started.
func (b *book) retry(names []string) {
	maps.DeleteFunc(b.failed, func(_ plan.OpKey, f plan.Failure) bool {
		switch a := f.Action.(type) {
		case plan.PullImage:
			return len(names) == 0 || slices.Contains(names, a.Container)
		case plan.StartContainer:
			return len(names) == 0 || slices.Contains(names, a.Name)
		}
		return false
	})
}

// AddEphemeral puts an ephemeral container into a running pod. It stays for as
// long as the pod does, also over a restart of the agent. The error says by
// field what is wrong with it.
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
		reply <- nil
	})
}
