package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/pod"
	"berth/podspec"
)

// ErrPodNotFound means that the pod has no worker: it is not, or no longer, on this node.
var ErrPodNotFound = errors.New("pod not found on this node")

// requestTimeout is the longest time that a user waits for a reply.
const requestTimeout = 30 * time.Second

// RestartContainers restarts the named containers of a pod, or without names all
// app and sidecar containers, see plan.RequestRestart. It returns when the restart is
// on disk and has started.
func (a *Agent) RestartContainers(ctx context.Context, uid types.UID, names []string) error {
	return a.requestWorker(ctx, uid, func(w *worker, reply chan<- error) { w.Restart(names, reply) })
}

// AddEphemeralContainer adds an ephemeral container to a running pod, and returns
// when it is on disk. The container survives a restart of the agent. The error names
// the invalid fields.
func (a *Agent) AddEphemeralContainer(ctx context.Context, uid types.UID, c corev1.EphemeralContainer) error {
	return a.requestWorker(ctx, uid, func(w *worker, reply chan<- error) {
		s, known := a.StatusCache.Get(uid)
		if known && (pod.IsTerminal(s.Status.Phase) || !s.Memory.FinishedAt.IsZero()) {
			reply <- fmt.Errorf("pod %s has finished", w.pod.Name)
			return
		}
		p := w.pod.DeepCopy()
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, c)
		podspec.SetDefaults(p)
		if errs := podspec.Validate(p); len(errs) > 0 {
			reply <- fmt.Errorf("invalid ephemeral container: %w", errs.ToAggregate())
			return
		}
		added := p.Spec.EphemeralContainers[len(p.Spec.EphemeralContainers)-1]
		a.desired.ephemeral[uid] = append(a.desired.ephemeral[uid], added)
		p = a.desired.withEphemeralContainers(w.pod)
		if a.desired.pods[uid] != nil {
			a.desired.pods[uid] = p
		}
		w.pod = p
		w.Update(pod.Desired{Pod: p})
		w.RunAdded(added.Name, reply)
	})
}

// requestWorker sends a request to a pod's worker, from the agent's goroutine, and
// waits for the reply.
func (a *Agent) requestWorker(ctx context.Context, uid types.UID, send func(*worker, chan<- error)) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	reply := make(chan error, 1)
	a.call(ctx, func() {
		if w, known := a.workers[uid]; known && !w.terminating {
			send(w, reply)
			return
		}
		reply <- ErrPodNotFound
	})
	select {
	case err := <-reply:
		return err
	case <-a.stopped:
		return errors.New("agent is shutting down")
	case <-ctx.Done():
		return fmt.Errorf("wait for pod worker: %w", ctx.Err())
	}
}
