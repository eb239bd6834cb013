package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// newEphemeralVolumeController creates the claims of the generic ephemeral volumes of pods. The garbage collector
// deletes them with the pod.
func newEphemeralVolumeController(c Config) ([]*controller, error) {
	core := c.Informers.Core().V1()
	if err := c.indexPodsByClaim(); err != nil {
		return nil, err
	}
	pods := core.Pods().Informer().GetIndexer()
	ctrl := c.newController(func(ctx context.Context, key string) (time.Duration, error) {
		obj, _, err := pods.GetByKey(key)
		pod, ok := obj.(*corev1.Pod)
		if err != nil || !ok || pod.DeletionTimestamp != nil || podTerminated(pod) {
			return 0, err //nolint:wrapcheck // the index of the informer
		}
		var errs []error
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.Ephemeral == nil {
				continue
			}
			if err := c.ensureEphemeralClaim(ctx, pod, v); err != nil {
				c.Events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
				errs = append(errs, fmt.Errorf("ephemeral volume %s: %w", v.Name, err))
			}
		}
		return 0, errors.Join(errs...)
	})
	if err := ctrl.watch(core.Pods().Informer(), func(obj any) []string {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.DeletionTimestamp != nil {
			return nil
		}
		for i := range pod.Spec.Volumes {
			if pod.Spec.Volumes[i].Ephemeral != nil {
				return objectKey(pod)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	// A claim that was deleted is created again, and one that belongs to another object may be gone now.
	return []*controller{ctrl}, ctrl.watch(core.PersistentVolumeClaims().Informer(), func(obj any) (out []string) {
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			for _, pod := range c.podsByIndex(claimIndex, claim.Namespace+"/"+claim.Name) {
				out = append(out, objectKey(pod)...)
			}
		}
		return out
	})
}

// ensureEphemeralClaim creates the claim of an ephemeral volume unless it exists.
func (c Config) ensureEphemeralClaim(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	name := ephemeral.VolumeClaimName(pod, v)
	claim, err := c.Informers.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(
		name)
	if err == nil {
		return ephemeral.VolumeIsForPod(pod, claim) //nolint:wrapcheck // upstream's message
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get claim %s: %w", name, err)
	}
	template := v.Ephemeral.VolumeClaimTemplate
	claim = &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod,
				corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}
	_, err = c.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the informer delivers it, and its owner is checked then
	}
	measureEphemeralClaim(err)
	if err != nil {
		return fmt.Errorf("create claim %s: %w", name, err)
	}
	return nil
}
