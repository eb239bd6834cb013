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

// RunSandbox creates and starts the pod's sandbox with its network and returns it as the runtime
// reports it.
//
// A sandbox of the same attempt that an interrupted call left behind is adopted if it is ready and
// replaced if it is not. If this call itself is interrupted, or the status of the new sandbox
// cannot be read, the sandbox is returned together with the error if it exists. Its ID is empty
// otherwise.
func (c *Client) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (plan.Sandbox, error) {
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
	c.reportWarnings(pod, append(warnings, criconfig.BandwidthWarnings(node, pod)...))
	on := pod.Namespace + "/" + pod.Name
	req := &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler}
	for repeated := false; ; repeated = true {
		var id string
		var adopted bool
		err = c.call(ctx, verbRunSandbox, on, c.deadlines.RunSandbox, func(ctx context.Context) (err error) {
			id, adopted, err = c.createSandbox(ctx, req)
			return err
		})
		if err != nil {
			return c.interruptedSandbox(ctx, config.Metadata, err), err
		}
		seen, err := c.sandbox(ctx, id)
		if err != nil {
			return plan.Sandbox{ID: id, Ready: true, Attempt: s.Attempt, CreatedAt: time.Now()}, err
		}
		// containerd may list a sandbox as ready for a moment after it has stopped.
		if seen.Ready || !adopted || repeated {
			return seen, nil
		}
	}
}

// reportWarnings passes warnings to WarnPod.
func (c *Client) reportWarnings(pod *corev1.Pod, warnings []criconfig.Warning) {
	for _, w := range warnings {
		c.warnPod(pod, w.Reason, w.Message)
	}
}

// createSandbox runs the sandbox and removes what an earlier call left behind under its name. adopted
// reports that an earlier call has created the sandbox.
func (c *Client) createSandbox(ctx context.Context,
	req *runtimeapi.RunPodSandboxRequest) (id string, adopted bool, err error) {
	wait := retryWait{until: time.Now().Add(c.deadlines.NameReservation)}
	for {
		resp, err := c.runtime.RunPodSandbox(ctx, req)
		if !isNameReserved(err) {
			return resp.GetPodSandboxId(), false, err
		}
		left, findErr := c.findSandbox(ctx, req.Config.Metadata)
		switch {
		case findErr != nil:
			return "", false, findErr
		case left == nil:
			if !wait.next(ctx) {
				return "", false, fmt.Errorf("an earlier attempt is still in progress: %w", grpcError{err})
			}
		case left.State == runtimeapi.PodSandboxState_SANDBOX_READY:
			return left.Id, true, nil
		default:
			if err := errors.Join(c.StopSandbox(ctx, left.Id), c.RemoveSandbox(ctx, left.Id)); err != nil &&
				!wait.next(ctx) {
				return "", false, fmt.Errorf("remove sandbox of an earlier attempt: %w", err)
			}
		}
	}
}

// interruptedSandbox returns the sandbox that an interrupted call left behind, if one list finds it.
func (c *Client) interruptedSandbox(ctx context.Context, meta *runtimeapi.PodSandboxMetadata, err error) plan.Sandbox {
	if !outcomeUnknown(err) {
		return plan.Sandbox{}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.deadlines.Interrupted)
	defer cancel()
	left, err := c.findSandbox(ctx, meta)
	if err != nil || left == nil {
		return plan.Sandbox{}
	}
	return c.withNetworkState(sandboxFromList(left), left.Labels, left.Annotations)
}

// findSandbox returns the pod's sandbox with that attempt, or nil if the runtime lists none.
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

// retryWait delays the retries for a name that the runtime still has reserved.
type retryWait struct {
	until time.Time
	pause time.Duration
}

// next waits and reports whether there is time for another attempt.
func (w *retryWait) next(ctx context.Context) bool {
	w.pause = min(max(2*w.pause, 50*time.Millisecond), time.Second)
	if time.Now().Add(w.pause).After(w.until) {
		return false
	}
	return sleep(ctx, w.pause)
}

// sleep waits for d. It returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
