package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"berth/control/scheduler/placement"
	"berth/control/volumes"
)

// volumeBindingTimeout limits the time from the selection of a node to the binding of the pod's claims, as in
// kube-scheduler.
const volumeBindingTimeout = 10 * time.Minute

// volumeBinding is a pod with a node whose claims are being bound.
type volumeBinding struct {
	queued  *queuedPod
	pod     *corev1.Pod // with its node
	result  placement.Result
	attempt attempt

	requested bool // the volumes and claims are written
	deadline  time.Time
}

// bindVolumes reserves the volumes for the pod's claims and requests those that are to be provisioned. The pod is bound
// when its claims are.
func (s *Scheduler) bindVolumes(b *volumeBinding) {
	b.deadline = time.Now().Add(volumeBindingTimeout)
	s.volumeBindings[b.pod.UID] = b
	s.call(func(ctx context.Context) {
		err := s.requestVolumes(ctx, b)
		s.inbox.post(func() {
			if s.volumeBindings[b.pod.UID] != b {
				return
			}
			if err != nil {
				s.volumeBindingFailed(b, err)
				return
			}
			b.requested = true
			s.checkVolumeBindings(time.Now())
		})
	})
}

// requestVolumes writes the claimRefs of volumes and the selected node of claims.
func (s *Scheduler) requestVolumes(ctx context.Context, b *volumeBinding) error {
	core := s.Client.CoreV1()
	for _, pair := range b.result.Volumes.Bind {
		v, dirty, err := storagehelpers.GetBindVolumeToClaim(pair.Volume, pair.Claim)
		if err != nil {
			return fmt.Errorf("volume %s: %w", pair.Volume.Name, err)
		}
		if !dirty {
			continue
		}
		if _, err := core.PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update volume %s: %w", v.Name, err)
		}
	}
	for _, claim := range b.result.Volumes.Provision {
		if claim.Annotations[storagehelpers.AnnSelectedNode] == b.result.Node {
			continue
		}
		out := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, storagehelpers.AnnSelectedNode, b.result.Node)
		if _, err := core.PersistentVolumeClaims(out.Namespace).Update(ctx, out, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update claim %s/%s: %w", out.Namespace, out.Name, err)
		}
	}
	return nil
}

// checkVolumeBindings binds the pods whose claims are bound, and gives up those that cannot be bound any more. It
// returns the earliest deadline, or the zero time.
func (s *Scheduler) checkVolumeBindings(now time.Time) (next time.Time) {
	for uid, b := range s.volumeBindings {
		if _, queued := s.queue.entries[uid]; !queued { // it was deleted, or bound by another scheduler
			delete(s.volumeBindings, uid)
			continue
		}
		bound, err := s.claimsBound(b)
		switch {
		case err == nil && bound:
			delete(s.volumeBindings, uid)
			s.startBinding(b.queued, b.pod, b.result, b.attempt)
			continue
		case err == nil && !now.Before(b.deadline):
			err = errors.New("timed out waiting for the condition")
		}
		if err != nil {
			s.volumeBindingFailed(b, err)
			continue
		}
		if next.IsZero() || b.deadline.Before(next) {
			next = b.deadline
		}
	}
	return next
}

// claimsBound reports whether all claims that the pod's node was selected for are bound.
func (s *Scheduler) claimsBound(b *volumeBinding) (bool, error) {
	if !b.requested {
		return false, nil
	}
	core := s.Informers.Core().V1()
	all := true
	check := func(claim *corev1.PersistentVolumeClaim, provisioned bool) error {
		now, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(claim.Namespace).Get(claim.Name)
		if err != nil || now.UID != claim.UID {
			return fmt.Errorf("persistentvolumeclaim %q not found", claim.Name)
		}
		var v *corev1.PersistentVolume
		if now.Spec.VolumeName != "" {
			v, _ = core.PersistentVolumes().Lister().Get(now.Spec.VolumeName)
		}
		if volumes.IsFullyBound(now, v) {
			return nil
		}
		all = false
		// A provisioner that cannot provide for the node removes the annotation.
		if provisioned && now.Spec.VolumeName == "" && newer(now, claim) {
			if node := now.Annotations[storagehelpers.AnnSelectedNode]; node != b.result.Node {
				return fmt.Errorf("provisioning failed for PVC %q: selected node is %q", claim.Name, node)
			}
		}
		return nil
	}
	for _, pair := range b.result.Volumes.Bind {
		if err := check(pair.Claim, false); err != nil {
			return false, err
		}
	}
	for _, claim := range b.result.Volumes.Provision {
		if err := check(claim, true); err != nil {
			return false, err
		}
	}
	return all, nil
}

// newer reports whether the informer has a later state of a claim than the one that the node was selected for.
func newer(now, before *corev1.PersistentVolumeClaim) bool {
	return now.ResourceVersion != before.ResourceVersion
}

// volumeBindingFailed gives up the node of a pod.
func (s *Scheduler) volumeBindingFailed(b *volumeBinding, err error) {
	delete(s.volumeBindings, b.pod.UID)
	err = fmt.Errorf("running PreBind plugin %q: binding volumes: %w", placement.FilterVolumeBinding, err)
	s.observeAttempt(b.attempt, resultError)
	s.Log.Warn("volume binding failed", "pod", b.pod.Namespace+"/"+b.pod.Name, "node", b.result.Node, "err", err)
	s.Events.Event(b.pod, corev1.EventTypeWarning, eventFailed, err.Error())
	s.bindingDone(b.pod.UID, err)
}
