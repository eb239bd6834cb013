package networks

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// SandboxRuntime is the part of the container runtime that Sandboxes uses.
type SandboxRuntime interface {
	RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (plan.Sandbox, error)
	StopSandbox(ctx context.Context, id string) error
	Sandbox(ctx context.Context, id string) (plan.Sandbox, error)
	NetNS(ctx context.Context, id string) (string, error)
}

// Sandboxes runs and stops sandboxes with additional networks. The networks are attached before a
// sandbox is reported as running and detached before it is stopped.
type Sandboxes struct {
	Runtime        SandboxRuntime
	Networks       *Networks
	DefaultNetwork func() string // name of the network that the runtime attaches
}

// RunSandbox runs a sandbox and attaches the networks that its pod requests. After an error a
// sandbox may be left: StopSandbox and the runtime remove it.
func (a *Sandboxes) RunSandbox(ctx context.Context, pod *corev1.Pod, s plan.SandboxConfig) (plan.Sandbox, error) {
	requested, err := a.Networks.Resolve(pod)
	if err != nil {
		return plan.Sandbox{}, err
	}
	if len(requested) == 0 {
		return a.Runtime.RunSandbox(ctx, pod, s)
	}
	defer a.Networks.SandboxCreating(pod.UID)()
	sandbox, err := a.Runtime.RunSandbox(ctx, pod, s)
	if err != nil {
		return sandbox, err
	}
	netns, err := a.Runtime.NetNS(ctx, sandbox.ID)
	if err == nil {
		err = a.Networks.Attach(ctx, sandbox.ID, netns, pod, requested)
	}
	if err != nil {
		return plan.Sandbox{}, err
	}
	// Its IPs were not reported before.
	if sandbox, err = a.Runtime.Sandbox(ctx, sandbox.ID); err != nil {
		return plan.Sandbox{}, err
	}
	return sandbox, a.Networks.SetDefaultNetwork(sandbox.ID, a.DefaultNetwork(), sandbox.IPs)
}

// StopSandbox detaches the networks of a sandbox and stops it.
func (a *Sandboxes) StopSandbox(ctx context.Context, id string) error {
	if err := a.Networks.Detach(ctx, id); err != nil {
		return err
	}
	return a.Runtime.StopSandbox(ctx, id)
}

// Annotated returns the pod with the annotation of its network status, if it has any.
func (n *Networks) Annotated(pod *corev1.Pod) *corev1.Pod {
	status := n.Status(pod.UID)
	if status == "" {
		return pod
	}
	annotated := *pod
	annotated.Annotations = maps.Clone(pod.Annotations)
	if annotated.Annotations == nil {
		annotated.Annotations = map[string]string{}
	}
	annotated.Annotations[StatusAnnotation] = status
	return &annotated
}
