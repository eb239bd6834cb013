package executor

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth/node/handover"
	"berth/nodeapi"
)

const (
	// takeoverTimeout limits the time until berth answers after its start.
	takeoverTimeout = 2 * time.Minute
	// adoptionTimeout limits the time until all pods are reported by berth as they were before.
	adoptionTimeout = time.Minute
)

// awaitBerth waits until the agent answers on its local socket.
func (x *Executor) awaitBerth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	return poll(ctx, func() error {
		_, err := x.agentPods(ctx)
		return err
	})
}

// awaitPods waits until the agent reports all pods with the containers that they had before, and
// returns what became of them.
func (x *Executor) awaitPods(ctx context.Context, before []handover.Pod) (out []handover.Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, adoptionTimeout)
	defer cancel()
	pending := errors.New("pods are not adopted yet")
	err = poll(ctx, func() error {
		after, err := x.agentPods(ctx)
		if err != nil {
			return err
		}
		out = handover.Compare(before, after)
		for _, o := range out {
			if o.Failed() {
				return pending
			}
		}
		return nil
	})
	if errors.Is(err, pending) || out != nil && errors.Is(err, context.DeadlineExceeded) {
		err = nil // the caller reports the pods
	}
	return out, err
}

// poll repeats f until it succeeds. When ctx ends, it returns the last error of f.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// agentPods returns the pods that the agent reports, with their running containers.
func (x *Executor) agentPods(ctx context.Context) ([]handover.Pod, error) {
	pods, err := x.agentPodList(ctx)
	return handover.AllPods(pods), err
}

// agentPodList returns the pods that the agent reports.
func (x *Executor) agentPodList(ctx context.Context) ([]*corev1.Pod, error) {
	c, err := nodeapi.Dial(x.Socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.Pods(ctx, nodeapi.PodsRequest{})
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	for i := range all.Items {
		pods = append(pods, &all.Items[i])
	}
	return pods, nil
}
