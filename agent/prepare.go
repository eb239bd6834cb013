package agent

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/podspec"
)

// Prepare is stage 1: it looks at what the runtime and the host have of the
// pod. Looking is cheap, because what is known is advanced by the outcomes of
// actions; the runtime is read at adoption, when an outcome is in doubt, and
// by the audit.
type Prepare struct {
	Runtime interface {
		Pod(ctx context.Context, uid types.UID) ([]plan.Sandbox, []plan.Container, error)
		Container(ctx context.Context, id string) (plan.Container, error)
	}
	Host interface {
		Observe(ctx context.Context, pod *corev1.Pod) (dirs bool, volumes map[string]plan.VolumeSeen, err error)
	}
	Cgroups interface {
		Exists(ctx context.Context, pod *corev1.Pod) (bool, error)
	}
	Images interface {
		Observe(ctx context.Context, pod *corev1.Pod, names []string, secrets plan.Objects) plan.ImagesSeen
	}
	Network func() plan.NetworkSeen
	// RecursiveReadOnly reports whether the pod's runtime handler can mount
	// read-only with all that is mounted below. Nil: it cannot.
	RecursiveReadOnly func(pod *corev1.Pod) bool
	DiskPressure      func() bool               // the node is short of disk; nil: it never is
	HeldPull          func(image string) string // why a pull waits for room on the disk; empty: it does not. Nil: none ever does
	// Devices tells what the pod's containers have of devices, and what they wait
	// for. Nil: the node has none.
	Devices func(pod *corev1.Pod) map[string]plan.DevicesSeen
}

// look reads what there is of the pod: of the host when asked, of the runtime
// when asked. A pod that is new on a node whose runtime was listed has nothing
// in the runtime.
func (p *Prepare) look(ctx context.Context, pod *corev1.Pod, objs plan.Objects, host, runtime bool) observation {
	s := observation{host: host, runtime: runtime}
	var wg sync.WaitGroup
	errs := make([]error, 3)
	if runtime {
		wg.Go(func() { s.sandboxes, s.containers, errs[0] = p.Runtime.Pod(ctx, pod.UID) })
	}
	if host {
		wg.Go(func() { errs[1] = p.lookAtHost(ctx, pod, &s) })
		wg.Go(func() { s.images = p.Images.Observe(ctx, pod, podspec.Images(pod), objs) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			s.err = fmt.Errorf("look at pod %s/%s: %w", pod.Namespace, pod.Name, err)
			break
		}
	}
	return s
}

func (p *Prepare) lookAtHost(ctx context.Context, pod *corev1.Pod, s *observation) (err error) {
	if s.dirs, s.volumes, err = p.Host.Observe(ctx, pod); err != nil {
		return err
	}
	s.cgroup, err = p.Cgroups.Exists(ctx, pod)
	return err
}

// atHand takes in what takes no time to look at.
func (p *Prepare) atHand(b *state) {
	b.observed.Network = p.network()
	b.observed.Short = p.DiskPressure != nil && p.DiskPressure()
	b.observed.Held = p.heldPulls(b.inProgress)
	b.observed.Devices = p.devices(b.desired.Pod)
	b.observed.RecursiveReadOnly = p.recursiveReadOnly(b.desired.Pod)
}

func (p *Prepare) network() plan.NetworkSeen {
	if p.Network == nil {
		return plan.NetworkSeen{Ready: true}
	}
	return p.Network()
}

// heldPulls tells which of the pulls under way wait for room on the disk, and why.
func (p *Prepare) heldPulls(busy map[plan.OpKey]plan.Action) (held map[string]string) {
	if p.HeldPull == nil {
		return nil
	}
	for _, a := range busy {
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

// recursiveReadOnly asks what the pod's runtime handler can do, of pods that want
// to know.
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

func (p *Prepare) devices(pod *corev1.Pod) map[string]plan.DevicesSeen {
	if p.Devices == nil {
		return nil
	}
	return p.Devices(pod)
}
