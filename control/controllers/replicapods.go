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

// candidatePods returns the pods that the set controls or may adopt.
func (r *replicaController) candidatePods(set *appsv1.ReplicaSet) []*corev1.Pod {
	return slices.Concat(r.podsByIndex(controllerIndex, string(set.UID)), r.podsByIndex(controllerIndex,
		orphanKey(set.Namespace)))
}

// claim returns the pods of the set. It adopts matching pods without a controller and releases pods
// that no longer match the selector.
func (r *replicaController) claim(ctx context.Context, set *appsv1.ReplicaSet, selector labels.Selector,
	candidates []*corev1.Pod) (own []*corev1.Pod, err error) {
	mayAdopt := sync.OnceValue(func() error { return r.checkAlive(ctx, set) })
	var errs []error
	for _, pod := range candidates {
		matches := selector.Matches(labels.Set(pod.Labels))
		switch controlled := controllerOf(pod) == set.UID; {
		case controlled && matches:
			own = append(own, pod)
		case controlled && set.DeletionTimestamp == nil:
			errs = append(errs, r.release(ctx, set, pod))
		case controlled, !matches, set.DeletionTimestamp != nil, pod.DeletionTimestamp != nil,
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

// checkAlive verifies with the API server that the set still exists and may own pods, because the
// cache may be stale.
func (r *replicaController) checkAlive(ctx context.Context, set *appsv1.ReplicaSet) error {
	live, err := r.live(ctx, set.Namespace, set.Name)
	switch {
	case err != nil:
		return fmt.Errorf("get %s %s/%s: %w", r.Kind, set.Namespace, set.Name, err)
	case live.GetUID() != set.UID:
		return fmt.Errorf("%s %s/%s was replaced by an object of the same name", r.Kind, set.Namespace, set.Name)
	case live.GetDeletionTimestamp() != nil:
		return fmt.Errorf("%s %s/%s is being deleted", r.Kind, set.Namespace, set.Name)
	}
	return nil
}

// adopt makes the set the controller of the pod.
func (r *replicaController) adopt(ctx context.Context, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	if err := r.patchOwners(ctx, pod, metav1.NewControllerRef(set, r.GroupVersionKind)); err != nil {
		return fmt.Errorf("adopt pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Info("pod adopted", "pod", pod.Namespace+"/"+pod.Name, "set", set.Name)
	return nil
}

// release removes the set from the owner references of the pod.
func (r *replicaController) release(ctx context.Context, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	err := r.patchOwners(ctx, pod, map[string]any{"$patch": "delete", "uid": set.UID})
	// invalid: another pod has the name, or the owner reference is already gone
	if ignoreNotFound(err) != nil && !apierrors.IsInvalid(err) {
		return fmt.Errorf("release pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Info("pod released", "pod", pod.Namespace+"/"+pod.Name, "set", set.Name)
	return nil
}

func (r *replicaController) patchOwners(ctx context.Context, pod *corev1.Pod, ref any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "ownerReferences": []any{ref}}})
	if err != nil {
		return err //nolint:wrapcheck // wrapped by the caller
	}
	_, err = r.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{})
	return err //nolint:wrapcheck // wrapped by the caller
}

// manageReplicas creates missing pods or deletes surplus ones.
func (r *replicaController) manageReplicas(ctx context.Context, key string, set *appsv1.ReplicaSet,
	active []*corev1.Pod) error {
	switch missing := desiredReplicas(set) - len(active); {
	case missing > 0:
		return r.createPods(ctx, key, set, min(missing, burstReplicas))
	case missing < 0:
		ordered := deletionOrder(active, r.relatedPodCounts(set, active), time.Now())
		return r.deletePods(ctx, key, set, ordered[:min(-missing, burstReplicas)])
	}
	return nil
}

// createPods creates n pods in batches of 1, 2, 4 and so on, so that a request that is always
// rejected is sent once instead of n times.
func (r *replicaController) createPods(ctx context.Context, key string, set *appsv1.ReplicaSet, n int) error {
	pod, created := r.newPod(set), 0
	for size := 1; created < n; size *= 2 {
		batch := min(size, n-created)
		// Every call gets its own copy, because the client modifies the object.
		if err := inParallel(batch, func(int) error { return r.createPod(ctx, key, set, pod.DeepCopy()) }); err != nil {
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // the set is deleted together with the namespace
			}
			return err
		}
		created += batch
	}
	r.Log.Info("pods created", "set", key, "count", created)
	return nil
}

func (r *replicaController) createPod(ctx context.Context, key string, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	created, err := r.Client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			r.Events.Eventf(r.reference(set), corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err //nolint:wrapcheck // users read it in the condition ReplicaFailure
	}
	r.mu.Lock()
	exp := r.expectations[key]
	exp.created[created.UID], exp.lastCreated = created.Name, time.Now()
	r.mu.Unlock()
	r.Events.Eventf(r.reference(set), corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", created.Name)
	return nil
}

// newPod returns a pod from the set's template.
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

func (r *replicaController) deletePods(ctx context.Context, key string, set *appsv1.ReplicaSet,
	pods []*corev1.Pod) error {
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
		r.Log.Info("pods deleted", "set", key, "count", len(pods))
	}
	return err
}

// reference returns the object reference for events.
func (r *replicaController) reference(set *appsv1.ReplicaSet) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: r.GroupVersion().String(), Kind: r.Kind, Namespace: set.Namespace, Name: set.Name, UID: set.UID,
		ResourceVersion: set.ResourceVersion,
	}
}

// inParallel calls do n times concurrently, waits for all calls, and returns the first error.
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
