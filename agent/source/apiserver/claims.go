package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/internal/apiclient"
	"berth/podspec"
)

const annBindCompleted = "pv.kubernetes.io/bind-completed"

// startClaim requests a claim and its volume until the claim is bound. A node may only read claims and volumes one by
// one, and a bound claim keeps its volume.
func (s *Source) startClaim(ctx context.Context, key source.ObjectKey, u *object, pod *corev1.Pod) {
	if u.resolved {
		return // from the previous run
	}
	u.token.request = func() {
		u.token.pending = true
		s.wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
			defer cancel()
			o, err := s.getClaim(ctx, key, pod)
			s.do(func() { s.handleClaim(u, o, err) })
		})
	}
	u.token.due = s.opt.Now()
}

// getClaim returns the volume of a claim.
func (s *Source) getClaim(ctx context.Context, key source.ObjectKey, pod *corev1.Pod) (plan.Object, error) {
	var claim corev1.PersistentVolumeClaim
	err := s.opt.Client.Get(ctx, apiclient.PersistentVolumeClaims, key.Namespace, key.Name, &claim)
	if err != nil {
		return plan.Object{}, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral != nil && podspec.ClaimName(pod, v) == claim.Name && !metav1.IsControlledBy(&claim, pod) {
			return plan.Object{}, fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)",
				claim.Namespace, claim.Name, pod.Namespace, pod.Name)
		}
	}
	switch {
	case claim.DeletionTimestamp != nil:
		return plan.Object{}, errors.New("PVC is being deleted")
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" ||
		!metav1.HasAnnotation(claim.ObjectMeta, annBindCompleted):
		return plan.Object{}, errors.New("PVC is not bound")
	}
	var v corev1.PersistentVolume
	if err := s.opt.Client.Get(ctx, apiclient.PersistentVolumes, "", claim.Spec.VolumeName, &v); err != nil {
		return plan.Object{}, fmt.Errorf("failed to get PV %s from API server: %w", claim.Spec.VolumeName, err)
	}
	if ref := v.Spec.ClaimRef; ref == nil || ref.UID != claim.UID {
		return plan.Object{}, fmt.Errorf("PV %s is not bound to the PVC", v.Name)
	}
	return plan.Object{
		Version: plan.Version{Version: string(claim.UID) + "/" + string(v.UID)},
		Volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v.Name, UID: v.UID},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: v.Spec.PersistentVolumeSource,
				VolumeMode: v.Spec.VolumeMode, AccessModes: v.Spec.AccessModes, MountOptions: v.Spec.MountOptions}},
	}, nil
}

// handleClaim handles the result of a request. An error is retried.
func (s *Source) handleClaim(u *object, o plan.Object, err error) {
	t := &u.token
	t.pending = false
	if err != nil {
		u.lastErr = errorText(err)
		t.due = s.opt.Now().Add(min(minTokenRetry<<min(t.attempts, 10), maxTokenRetry))
		t.attempts++
		return
	}
	t.request = nil
	s.set(u, o)
}
