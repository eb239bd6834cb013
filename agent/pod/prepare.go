package pod

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// Prepare is stage 1: it observes the pod in the runtime and on the host. Observations
// are rare, because the outcomes of actions update the observed state. They are made at
// adoption, after an uncertain outcome, and when an event or the audit requires one.
type Prepare struct {
	Runtime interface {
		Pod(ctx context.Context, uid types.UID) ([]plan.Sandbox, []plan.Container, error)
		Container(ctx context.Context, id string) (plan.Container, error)
	}
	Host interface {
		Observe(ctx context.Context, pod *corev1.Pod) (dirs bool, volumes map[string]plan.VolumeStatus, err error)
	}
	Cgroups interface {
		Exists(ctx context.Context, pod *corev1.Pod) (bool, error)
	}
	Images interface {
		Observe(ctx context.Context, pod *corev1.Pod, names []string, secrets plan.Objects) plan.ImageStatuses
	}
	Network func() plan.NetworkStatus
	// RecursiveReadOnly reports whether the pod's runtime handler supports
	// recursive read-only mounts. Nil: it does not.
	RecursiveReadOnly func(pod *corev1.Pod) bool
	DiskPressure      func() bool               // nil: the node never has disk pressure
	HeldPull          func(image string) string // why a pull waits for disk space; empty: it does not; may be nil
	// Devices returns the allocated devices of the pod's containers and what they
	// wait for. Nil: the node has none.
	Devices func(pod *corev1.Pod) map[string]plan.DeviceStatus
}

// observe reads the state of the pod, of the host and of the runtime as requested.
// A new pod on a node whose runtime was listed has nothing in the runtime.
func (p *Prepare) observe(ctx context.Context, pod *corev1.Pod, objs plan.Objects, host, runtime bool) observation {
	o := observation{host: host, runtime: runtime}
	var wg sync.WaitGroup
	errs := make([]error, 2)
	if runtime {
		wg.Go(func() { o.sandboxes, o.containers, errs[0] = p.Runtime.Pod(ctx, pod.UID) })
	}
	if host {
		wg.Go(func() { errs[1] = p.observeHost(ctx, pod, &o) })
		wg.Go(func() { o.images = p.Images.Observe(ctx, pod, podspec.Images(pod), objs) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			o.err = fmt.Errorf("observe pod %s/%s: %w", pod.Namespace, pod.Name, err)
			break
		}
	}
	return o
}

func (p *Prepare) observeHost(ctx context.Context, pod *corev1.Pod, o *observation) (err error) {
	if o.dirs, o.volumes, err = p.Host.Observe(ctx, pod); err != nil {
		return err
	}
	o.cgroup, err = p.Cgroups.Exists(ctx, pod)
	return err
}

// refresh updates the part of the observed state that is available without waiting.
func (p *Prepare) refresh(s *state) {
	s.observed.Network = p.network()
	s.observed.DiskPressure = p.DiskPressure != nil && p.DiskPressure()
	s.observed.HeldPulls = p.heldPulls(s.inProgress)
	s.observed.Devices = p.devices(s.desired.Pod)
	s.observed.RecursiveReadOnly = p.recursiveReadOnly(s.desired.Pod)
}

func (p *Prepare) network() plan.NetworkStatus {
	if p.Network == nil {
		return plan.NetworkStatus{Ready: true}
	}
	return p.Network()
}

// heldPulls returns which of the pulls in progress wait for disk space, and why.
func (p *Prepare) heldPulls(inProgress map[plan.ActionKey]plan.Action) (held map[string]string) {
	if p.HeldPull == nil {
		return nil
	}
	for _, a := range inProgress {
		pull, ok := a.(plan.PullImage)
		if !ok {
			continue
		}
		if why := p.HeldPull(pull.Image); why != "" {
			if held == nil {
				held = map[string]string{}
			}
			held[pull.Image] = why
		}
	}
	return held
}

// recursiveReadOnly asks for the support of recursive read-only mounts if the pod
// has such a mount.
func (p *Prepare) recursiveReadOnly(pod *corev1.Pod) bool {
	if p.RecursiveReadOnly == nil {
		return false
	}
	for _, list := range [...][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, m := range list[i].VolumeMounts {
				if m.RecursiveReadOnly != nil {
					return p.RecursiveReadOnly(pod)
				}
			}
		}
	}
	return false
}

func (p *Prepare) devices(pod *corev1.Pod) map[string]plan.DeviceStatus {
	if p.Devices == nil {
		return nil
	}
	return p.Devices(pod)
}
