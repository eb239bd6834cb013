package criruntime

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/ownership"
	"berth/agent/source"
	"berth/cri"
	"berth/podspec"
)

// Adopter implements agent.Adopter. Every field without another comment is required.
type Adopter struct {
	Client   *cri.Client
	Handover *ownership.Handover
	// Flush waits until the store has the state of Handover on disk.
	Flush func(context.Context) error
	// AdoptDir marks the directory of a pod and its volumes as berth's own.
	AdoptDir func(*corev1.Pod) error
	// Prove records that pods belong to berth.
	Prove func(...types.UID) error
	// ForeignDirs lists the pods of other programs that have a directory.
	ForeignDirs func(context.Context) ([]types.UID, error)
	// MirrorStatus returns the status that the kubelet has reported of a static pod. nil: none is known.
	MirrorStatus func(namespace, name string) *corev1.PodStatus
	// Unsupported receives each pod that is not adopted, once, with its unsupported fields.
	Unsupported func(*corev1.Pod, []podspec.FeatureUse)

	reported map[types.UID]bool // by Unsupported
}

// Supports reports whether berth supports a foreign pod. One that uses an unsupported feature, such as a
// volume of a CSI driver, stays foreign: berth could neither restart its containers nor clean up after it.
// Supports must not be called concurrently.
func (a *Adopter) Supports(pod *corev1.Pod) bool {
	uses := podspec.FeatureUses(pod)
	if len(uses) == 0 {
		return true
	}
	if !a.reported[pod.UID] {
		if a.reported == nil {
			a.reported = map[types.UID]bool{}
		}
		a.reported[pod.UID] = true
		a.Unsupported(pod, uses)
	}
	return false
}

// WithStatus returns a static pod with the status of its mirror pod, so that its readiness does not
// change. A file has no status.
func (a *Adopter) WithStatus(pod *corev1.Pod) *corev1.Pod {
	if a.MirrorStatus == nil || !podspec.IsStatic(pod) {
		return pod
	}
	st := a.MirrorStatus(pod.Namespace, pod.Name)
	if st == nil {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Status = *st
	return pod
}

// Foreign lists the pods on the host that belong to another program.
func (a *Adopter) Foreign(ctx context.Context) ([]ownership.Foreign, error) {
	sandboxes, err := a.Client.ForeignSandboxes(ctx)
	if err != nil {
		return nil, err
	}
	dirs, err := a.ForeignDirs(ctx)
	if err != nil {
		return nil, err
	}
	released := a.Handover.State().Released
	found := map[types.UID]*ownership.Foreign{}
	of := func(uid types.UID) *ownership.Foreign {
		if found[uid] == nil {
			found[uid] = &ownership.Foreign{UID: uid}
		}
		return found[uid]
	}
	for _, s := range sandboxes {
		if s.UID == "" {
			continue
		}
		f := of(s.UID)
		f.Namespace, f.Name = s.Namespace, s.Name
		kubelet := s.Creator == cri.CreatorKubelet || s.Creator == cri.CreatorBerth && released[s.UID]
		f.Kubelet = f.Kubelet || kubelet
		f.OtherBerth = f.OtherBerth || s.Creator == cri.CreatorBerth && !released[s.UID]
		f.Static = f.Static || kubelet && s.Source == source.File
		f.Ready = f.Ready || s.Ready
		if s.CreatedAt.After(f.CreatedAt) {
			f.CreatedAt = s.CreatedAt
		}
	}
	for _, uid := range dirs {
		of(uid).HasDir = true
	}
	out := make([]ownership.Foreign, 0, len(found))
	for _, f := range found {
		out = append(out, *f)
	}
	return out, nil
}

// Adopt records that pods belong to berth: in the store, and then on their directories, before anything
// of them is changed. After an error it can be repeated.
func (a *Adopter) Adopt(ctx context.Context, pods []*corev1.Pod, records map[types.UID]ownership.Adoption) error {
	a.Handover.Adopt(records)
	if err := a.Flush(ctx); err != nil {
		return fmt.Errorf("record adopted pods: %w", err)
	}
	var errs []error
	for _, pod := range pods {
		if err := a.AdoptDir(pod); err != nil {
			errs = append(errs, fmt.Errorf("adopt pod directory of %s/%s: %w", pod.Namespace, pod.Name, err))
			continue
		}
		errs = append(errs, a.Prove(pod.UID))
	}
	return errors.Join(errs...)
}

// State returns which pods were adopted.
func (a *Adopter) State() ownership.State { return a.Handover.State() }

// Forget removes the record of a pod of which nothing is left.
func (a *Adopter) Forget(uid types.UID) { a.Handover.Forget(uid) }
