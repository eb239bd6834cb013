package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// candidatePods are the pods that a set controls or may come to control.
func (r *replicaController) candidatePods(set *appsv1.ReplicaSet) []*corev1.Pod {
	return slices.Concat(r.podsByIndex(controllerIndex, string(set.UID)), r.podsByIndex(controllerIndex, orphanKey(set.Namespace)))
}

// claim returns the set's pods. It takes those that its selector finds and that
// nothing controls, and gives up those that it does not find any more.
func (r *replicaController) claim(ctx context.Context, set *appsv1.ReplicaSet, selector labels.Selector, known []*corev1.Pod) (own []*corev1.Pod, err error) {
	mayAdopt := sync.OnceValue(func() error { return r.checkAlive(ctx, set) })
	var errs []error
	for _, pod := range known {
		fits := selector.Matches(labels.Set(pod.Labels))
		switch mine := controllerOf(pod) == set.UID; {
		case mine && fits:
			own = append(own, pod)
		case mine && set.DeletionTimestamp == nil:
			errs = append(errs, r.release(ctx, set, pod))
		case mine, !fits, set.DeletionTimestamp != nil, pod.DeletionTimestamp != nil,
			pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		default:
			err := mayAdopt()
			if err == nil {
				err = r.adopt(ctx, set, pod)
			}
			if err == nil {
				own = append(own, pod)
			}
			errs = append(errs, ignoreNotFound(err))
		}
	}
	return own, errors.Join(errs...)
}

// checkAlive asks the server whether this very set is still there to own pods: the watch
// may be late.
func (r *replicaController) checkAlive(ctx context.Context, set *appsv1.ReplicaSet) error {
	live, err := r.live(ctx, set.Namespace, set.Name)
	switch {
	case err != nil:
		return fmt.Errorf("look at %s %s/%s: %w", r.Kind, set.Namespace, set.Name, err)
	case live.GetUID() != set.UID:
		return fmt.Errorf("%s %s/%s is gone and another has its name", r.Kind, set.Namespace, set.Name)
	case live.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%s %s/%s is being deleted", r.Kind, set.Namespace, set.Name)
	}
	return nil
}

// adopt makes the set the pod's controller.
func (r *replicaController) adopt(ctx context.Context, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	if err := r.patchOwners(ctx, pod, metav1.NewControllerRef(set, r.GroupVersionKind)); err != nil {
		return fmt.Errorf("adopt pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Info("pod is adopted", "pod", pod.Namespace+"/"+pod.Name, "by", set.Name)
	return nil
}

// release takes the set from the pod's owners.
func (r *replicaController) release(ctx context.Context, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	err := r.patchOwners(ctx, pod, map[string]any{"$patch": "delete", "uid": set.UID})
	if ignoreNotFound(err) != nil && !apierrors.IsInvalid(err) { // invalid: another pod has its name, or the owner is not there
		return fmt.Errorf("release pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Info("pod is released", "pod", pod.Namespace+"/"+pod.Name, "by", set.Name)
	return nil
}

func (r *replicaController) patchOwners(ctx context.Context, pod *corev1.Pod, ref any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "ownerReferences": []any{ref}}})
	if err != nil {
		return err //nolint:wrapcheck // the caller's
	}
	_, err = r.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	return err //nolint:wrapcheck // the caller's
}

// manageReplicas makes the pods that are missing, or deletes those that are too many.
func (r *replicaController) manageReplicas(ctx context.Context, key string, set *appsv1.ReplicaSet, there []*corev1.Pod) error {
	switch more := desiredReplicas(set) - len(there); {
	case more > 0:
		return r.createPods(ctx, key, set, min(more, burstReplicas))
	case more < 0:
		first := deletionOrder(there, r.relatedPodCounts(set, there), time.Now())
		return r.deletePods(ctx, key, set, first[:min(-more, burstReplicas)])
	}
	return nil
}

// createPods makes n pods. The first batch is of one and each is twice as large as the
// one before, so that what cannot be made is tried once and not n times.
func (r *replicaController) createPods(ctx context.Context, key string, set *appsv1.ReplicaSet, n int) error {
	pod, done := r.newPod(set), 0
	for size := 1; done < n; size *= 2 {
		batch := min(size, n-done)
		// A copy each: a client writes into what it sends.
		if err := inParallel(batch, func(int) error { return r.createPod(ctx, key, set, pod.DeepCopy()) }); err != nil {
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // and the set goes with the namespace
			}
			return err
		}
		done += batch
	}
	r.Log.Info("pods are made", "set", key, "pods", done)
	return nil
}

func (r *replicaController) createPod(ctx context.Context, key string, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	made, err := r.Client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			r.Events.Eventf(r.reference(set), corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err //nolint:wrapcheck // users read it in the condition ReplicaFailure
	}
	r.mu.Lock()
	l := r.expectations[key]
	l.created[made.UID], l.lastCreated = made.Name, time.Now()
	r.mu.Unlock()
	r.Events.Eventf(r.reference(set), corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return nil
}

// newPod is a pod of the set's template.
func (r *replicaController) newPod(set *appsv1.ReplicaSet) *corev1.Pod {
	t := set.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: set.Name + "-", Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, r.GroupVersionKind)},
		},
		Spec: t.Spec,
	}
}

func (r *replicaController) deletePods(ctx context.Context, key string, set *appsv1.ReplicaSet, pods []*corev1.Pod) error {
	err := inParallel(len(pods), func(i int) error {
		pod := pods[i]
		if err := r.deletePod(ctx, pod, nil); err != nil {
			r.Events.Eventf(r.reference(set), corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			return err
		}
		r.mu.Lock()
		r.expectations[key].deleting[pod.UID] = true
		r.mu.Unlock()
		r.Events.Eventf(r.reference(set), corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	})
	if err == nil {
		r.Log.Info("pods are deleted", "set", key, "pods", len(pods))
	}
	return err
}

// reference is what events say that they are about.
func (r *replicaController) reference(set *appsv1.ReplicaSet) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: r.GroupVersion().String(), Kind: r.Kind, Namespace: set.Namespace, Name: set.Name, UID: set.UID, ResourceVersion: set.ResourceVersion,
	}
}

// inParallel does n things at once, waits for all, and returns the first error.
func inParallel(n int, do func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
