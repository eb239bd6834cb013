package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/cri/criconfig"
)

// RunSandbox makes and starts the pod's sandbox with its network and returns it
// as the runtime shows it.
//
// A sandbox of the same attempt that an earlier, cut-off call has left is taken
// over when it is ready and replaced when it is not. When the call itself is cut
// off, or the new sandbox cannot be looked at, the sandbox is returned with the
// error if it is there: its ID says so.
func (c *Client) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxSetup) (plan.Sandbox, error) {
	node := c.node()
	handler, err := criconfig.RuntimeHandler(node, pod)
	if err != nil {
		return plan.Sandbox{}, err
	}
	config, err := criconfig.Sandbox(node, pod, s)
	if err != nil {
		return plan.Sandbox{}, err
	}
	_, warnings := criconfig.DNS(node, pod)
	c.tell(pod, append(warnings, criconfig.BandwidthWarnings(node, pod)...))
	on := pod.Namespace + "/" + pod.Name
	var id string
	err = c.call(ctx, verbRunSandbox, on, c.deadlines.RunSandbox, func(ctx context.Context) (err error) {
		id, err = c.makeSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		return err
	})
	if err != nil {
		return c.leftSandbox(ctx, config.Metadata, err), err
	}
	seen, err := c.sandbox(ctx, id)
	if err != nil {
		return plan.Sandbox{ID: id, Ready: true, Attempt: s.Attempt, CreatedAt: time.Now()}, err
	}
	return seen, nil
}

// tell passes warnings on.
func (c *Client) tell(pod *corev1.Pod, warnings []criconfig.Warning) {
	for _, w := range warnings {
		c.warnPod(pod, w.Reason, w.Message)
	}
}

// makeSandbox runs the sandbox, clearing what an earlier call has left under
// its name.
func (c *Client) makeSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (string, error) {
	wait := reservedWait{until: time.Now().Add(c.deadlines.NameReservation)}
	for {
		resp, err := c.runtime.RunPodSandbox(ctx, req)
		if !reserved(err) {
			return resp.GetPodSandboxId(), err
		}
		left, findErr := c.findSandbox(ctx, req.Config.Metadata)
		switch {
		case findErr != nil:
			return "", findErr
		case left == nil:
			if !wait.again(ctx) {
				return "", fmt.Errorf("an earlier attempt is still under way: %w", described{err})
			}
		case left.State == runtimeapi.PodSandboxState_SANDBOX_READY:
			return left.Id, nil
		default:
			if err := errors.Join(c.StopSandbox(ctx, left.Id), c.RemoveSandbox(ctx, left.Id)); err != nil && !wait.again(ctx) {
				return "", fmt.Errorf("clear the left-over of an earlier attempt: %w", err)
			}
		}
	}
}

// leftSandbox returns what a cut-off call has left, as far as one look tells.
func (c *Client) leftSandbox(ctx context.Context, meta *runtimeapi.PodSandboxMetadata, err error) plan.Sandbox {
	if !unsettled(err) {
		return plan.Sandbox{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.deadlines.Leftover)
	defer cancel()
	left, err := c.findSandbox(ctx, meta)
	if err != nil || left == nil {
		return plan.Sandbox{}
	}
	return c.judged(listedSandbox(left), left.Labels, left.Annotations)
}

// findSandbox returns the sandbox of the pod with that attempt, nil if the
// runtime shows none.
func (c *Client) findSandbox(ctx context.Context, meta *runtimeapi.PodSandboxMetadata) (*runtimeapi.PodSandbox, error) {
	all, err := c.listSandboxes(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: podSelector(meta.Uid)})
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.GetMetadata().GetAttempt() == meta.Attempt {
			return s, nil
		}
	}
	return nil, nil
}

// reservedWait spaces the tries for a name that the runtime still holds.
type reservedWait struct {
	until time.Time
	pause time.Duration
}

// again waits and reports whether there is time for another try.
func (w *reservedWait) again(ctx context.Context) bool {
	w.pause = min(max(2*w.pause, 50*time.Millisecond), time.Second)
	if time.Now().Add(w.pause).After(w.until) {
		return false
	}
	return pause(ctx, w.pause)
}

// pause waits for d and reports false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
