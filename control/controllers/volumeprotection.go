package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"
)

// The finalizers that keep a claim until no pod on a node uses it, a volume until no claim is bound to it, and a class
// until no claim or volume has it.
const (
	claimProtection           = "kubernetes.io/pvc-protection"
	volumeProtection          = "kubernetes.io/pv-protection"
	attributesClassProtection = "kubernetes.io/vac-protection"
)

// claimIndex is an index of the pods by the keys of their claims.
const claimIndex = "claim"

// indexPodsByClaim adds claimIndex to the shared pod informer.
func (c Config) indexPodsByClaim() error {
	return addIndex(c.Informers.Core().V1().Pods().Informer(), claimIndex, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return podClaimKeys(pod), nil
		}
		return nil, nil
	})
}

// podClaimKeys returns the keys of the claims of a pod, also those of its ephemeral volumes.
func podClaimKeys(pod *corev1.Pod) (out []string) {
	for i := range pod.Spec.Volumes {
		if name := podClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			out = append(out, pod.Namespace+"/"+name)
		}
	}
	return out
}

// podClaimName returns the name of the claim of a volume, or "".
func podClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

func podTerminated(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// usesClaim reports whether a pod on a node uses a claim. A terminated pod uses it too: the node may not have unmounted
// its volumes yet. A pod that has released its node does not use the claims of its ephemeral volumes: its finalizers
// may wait for their deletion.
func usesClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	removed := pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil &&
		*pod.DeletionGracePeriodSeconds == 0
	return pod.Spec.NodeName != "" && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return podClaimName(pod, &v) == claim.Name &&
			(v.Ephemeral == nil || !removed && metav1.IsControlledBy(claim, pod))
	})
}

// newClaimProtectionController removes the finalizer of claims that are being deleted when no pod uses them, and adds
// it to claims that have none.
func newClaimProtectionController(c Config) ([]*controller, error) {
	core := c.Informers.Core().V1()
	if err := c.indexPodsByClaim(); err != nil {
		return nil, err
	}
	claims := core.PersistentVolumeClaims().Informer().GetIndexer()
	ctrl := c.newController(func(ctx context.Context, key string) (time.Duration, error) {
		obj, _, err := claims.GetByKey(key)
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		if err != nil || !ok {
			return 0, err //nolint:wrapcheck // the index of the informer
		}
		out := withProtection(claim, claimProtection)
		if out == nil {
			return 0, nil
		}
		if claim.DeletionTimestamp != nil {
			if used, err := c.claimUsed(ctx, key, claim); used || err != nil {
				return 0, err
			}
		}
		_, err = c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, out, metav1.UpdateOptions{})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("update finalizers of claim %s: %w", key, err)
		}
		return 0, nil
	})
	if err := ctrl.watch(core.PersistentVolumeClaims().Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.addEventHandler(core.Pods().Informer(), podClaimHandler(ctrl, claims))
}

// podClaimHandler queues the claims that are being deleted and that a pod may have stopped to use.
func podClaimHandler(ctrl *controller, claims cache.Indexer) cache.ResourceEventHandlerFuncs {
	enqueue := func(obj any) {
		pod, ok := lastKnown(obj).(*corev1.Pod)
		if !ok {
			return
		}
		for _, key := range podClaimKeys(pod) {
			if o, _, err := claims.GetByKey(key); err == nil {
				if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.DeletionTimestamp != nil {
					ctrl.queue.Add(key)
				}
			}
		}
	}
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, obj any) {
			before, ok := old.(*corev1.Pod)
			pod, isPod := obj.(*corev1.Pod)
			if ok && isPod && (before.UID != pod.UID || pod.DeletionTimestamp != nil) {
				enqueue(old)
			}
		},
		DeleteFunc: enqueue,
	}
}

// claimUsed reports whether a pod on a node uses a claim. That none does is confirmed by the API server.
func (c Config) claimUsed(ctx context.Context, key string, claim *corev1.PersistentVolumeClaim) (bool, error) {
	for _, pod := range c.podsByIndex(claimIndex, key) {
		if usesClaim(pod, claim) {
			return true, nil
		}
	}
	pods, err := c.Client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list pods in %s: %w", claim.Namespace, err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return usesClaim(&pod, claim) }), nil
}

// newVolumeProtectionController removes the finalizer of volumes that are being deleted when they are not bound, and
// adds it to volumes that have none.
func newVolumeProtectionController(c Config) ([]*controller, error) {
	volumes := c.Informers.Core().V1().PersistentVolumes()
	ctrl := c.newController(func(ctx context.Context, name string) (time.Duration, error) {
		v, err := volumes.Lister().Get(name)
		if err != nil {
			return 0, ignoreNotFound(err)
		}
		out := withProtection(v, volumeProtection)
		if out == nil || v.DeletionTimestamp != nil && v.Status.Phase == corev1.VolumeBound {
			return 0, nil
		}
		_, err = c.Client.CoreV1().PersistentVolumes().Update(ctx, out, metav1.UpdateOptions{})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("update finalizers of volume %s: %w", name, err)
		}
		return 0, nil
	})
	return []*controller{ctrl}, ctrl.watch(volumes.Informer(), objectKey)
}

// newAttributesClassProtectionController removes the finalizer of VolumeAttributesClasses that are being deleted when
// no claim and no volume has them, and adds it to classes that have none.
func newAttributesClassProtectionController(c Config) ([]*controller, error) {
	classes := c.Informers.Storage().V1().VolumeAttributesClasses()
	core := c.Informers.Core().V1()
	ctrl := c.newController(func(ctx context.Context, name string) (time.Duration, error) {
		class, err := classes.Lister().Get(name)
		if err != nil {
			return 0, ignoreNotFound(err)
		}
		out := withProtection(class, attributesClassProtection)
		if out == nil {
			return 0, nil
		}
		if class.DeletionTimestamp != nil {
			if used, err := c.attributesClassUsed(name); used || err != nil {
				return 0, err
			}
		}
		_, err = c.Client.StorageV1().VolumeAttributesClasses().Update(ctx, out, metav1.UpdateOptions{})
		if ignoreNotFound(err) != nil {
			return 0, fmt.Errorf("update finalizers of volume attributes class %s: %w", name, err)
		}
		return 0, nil
	})
	// A claim or volume that has another class now, or is gone, may have been the last one of a class.
	released := cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, obj any) {
			now := attributesClassesOf(obj)
			for _, name := range attributesClassesOf(old) {
				if !slices.Contains(now, name) {
					ctrl.queue.Add(name)
				}
			}
		},
		DeleteFunc: func(obj any) {
			for _, name := range attributesClassesOf(lastKnown(obj)) {
				ctrl.queue.Add(name)
			}
		},
	}
	return []*controller{ctrl}, errors.Join(
		ctrl.watch(classes.Informer(), objectKey),
		ctrl.addEventHandler(core.PersistentVolumeClaims().Informer(), released),
		ctrl.addEventHandler(core.PersistentVolumes().Informer(), released))
}

// attributesClassUsed reports whether a claim or volume has a VolumeAttributesClass.
func (c Config) attributesClassUsed(name string) (bool, error) {
	core := c.Informers.Core().V1()
	claims, err := core.PersistentVolumeClaims().Lister().List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list claims: %w", err)
	}
	volumes, err := core.PersistentVolumes().Lister().List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list volumes: %w", err)
	}
	return slices.ContainsFunc(claims, func(o *corev1.PersistentVolumeClaim) bool {
		return slices.Contains(attributesClassesOf(o), name)
	}) || slices.ContainsFunc(volumes, func(o *corev1.PersistentVolume) bool {
		return slices.Contains(attributesClassesOf(o), name)
	}), nil
}

// attributesClassesOf returns the names of the VolumeAttributesClasses that a claim or volume wants or has.
func attributesClassesOf(obj any) (out []string) {
	add := func(name *string) {
		if ptr.Deref(name, "") != "" {
			out = append(out, *name)
		}
	}
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		add(o.Spec.VolumeAttributesClassName)
	case *corev1.PersistentVolumeClaim:
		add(o.Spec.VolumeAttributesClassName)
		add(o.Status.CurrentVolumeAttributesClassName)
		if m := o.Status.ModifyVolumeStatus; m != nil {
			add(&m.TargetVolumeAttributesClassName)
		}
	}
	return out
}

// withProtection returns a copy of an object with the finalizer, or without it if it is being deleted. It returns nil
// if nothing is to be changed.
func withProtection[O interface {
	comparable
	metav1.Object
	DeepCopy() O
}](obj O, finalizer string) (out O) {
	has, deleting := slices.Contains(obj.GetFinalizers(), finalizer), obj.GetDeletionTimestamp() != nil
	if has != deleting {
		return out
	}
	out = obj.DeepCopy()
	if deleting {
		out.SetFinalizers(slices.DeleteFunc(out.GetFinalizers(), func(f string) bool { return f == finalizer }))
	} else {
		out.SetFinalizers(append(out.GetFinalizers(), finalizer))
	}
	return out
}
