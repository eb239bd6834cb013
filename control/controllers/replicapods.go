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

// known are the pods that a set controls or may come to control.
func (r *replicator) known(set *appsv1.ReplicaSet) []*corev1.Pod {
	return slices.Concat(r.indexed(byController, string(set.UID)), r.indexed(byController, uncontrolled(set.Namespace)))
}

// claim returns the set's pods. It takes those that its selector finds and that
// nothing controls, and gives up those that it does not find any more.
func (r *replicator) claim(ctx context.Context, set *appsv1.ReplicaSet, selector labels.Selector, known []*corev1.Pod) (own []*corev1.Pod, err error) {
	mayAdopt := sync.OnceValue(func() error { return r.alive(ctx, set) })
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
			errs = append(errs, ignoreGone(err))
		}
	}
	return own, errors.Join(errs...)
}

// alive asks the server whether this very set is still there to own pods: the watch
// may be late.
func (r *replicator) alive(ctx context.Context, set *appsv1.ReplicaSet) error {
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
func (r *replicator) adopt(ctx context.Context, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	if err := r.patchOwners(ctx, pod, metav1.NewControllerRef(set, r.GroupVersionKind)); err != nil {
		return fmt.Errorf("adopt pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Info("pod is adopted", "pod", pod.Namespace+"/"+pod.Name, "by", set.Name)
	return nil
}

// release takes the set from the pod's owners.
func (r *replicator) release(ctx context.Context, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	err := r.patchOwners(ctx, pod, map[string]any{"$patch": "delete", "uid": set.UID})
	if ignoreGone(err) != nil && !apierrors.IsInvalid(err) { // invalid: another pod has its name, or the owner is not there
		return fmt.Errorf("release pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.Log.Info("pod is released", "pod", pod.Namespace+"/"+pod.Name, "by", set.Name)
	return nil
}

func (r *replicator) patchOwners(ctx context.Context, pod *corev1.Pod, ref any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "ownerReferences": []any{ref}}})
	if err != nil {
		return err //nolint:wrapcheck // the caller's
	}
	_, err = r.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	return err //nolint:wrapcheck // the caller's
}

// manage makes the pods that are missing, or deletes those that are too many.
func (r *replicator) manage(ctx context.Context, key string, set *appsv1.ReplicaSet, there []*corev1.Pod) error {
	switch more := wantedReplicas(set) - len(there); {
	case more > 0:
		return r.makePods(ctx, key, set, min(more, replicaBurst))
	case more < 0:
		first := dispensable(there, r.besides(set, there), time.Now())
		return r.deletePods(ctx, key, set, first[:min(-more, replicaBurst)])
	}
	return nil
}

// makePods makes n pods. The first batch is of one and each is twice as large as the
// one before, so that what cannot be made is tried once and not n times.
func (r *replicator) makePods(ctx context.Context, key string, set *appsv1.ReplicaSet, n int) error {
	pod, done := r.podOf(set), 0
	for size := 1; done < n; size *= 2 {
		batch := min(size, n-done)
		// A copy each: a client writes into what it sends.
		if err := together(batch, func(int) error { return r.makePod(ctx, key, set, pod.DeepCopy()) }); err != nil {
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

func (r *replicator) makePod(ctx context.Context, key string, set *appsv1.ReplicaSet, pod *corev1.Pod) error {
	made, err := r.Client.CoreV1().Pods(set.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			r.Events.Eventf(r.reference(set), corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return err //nolint:wrapcheck // users read it in the condition ReplicaFailure
	}
	r.mu.Lock()
	l := r.ledgers[key]
	l.made[made.UID], l.since = made.Name, time.Now()
	r.mu.Unlock()
	r.Events.Eventf(r.reference(set), corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return nil
}

// podOf is a pod of the set's template.
func (r *replicator) podOf(set *appsv1.ReplicaSet) *corev1.Pod {
	t := set.Spec.Template.DeepCopy()
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: set.Name + "-", Labels: t.Labels, Annotations: t.Annotations, Finalizers: t.Finalizers,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, r.GroupVersionKind)},
		},
		Spec: t.Spec,
	}
}

func (r *replicator) deletePods(ctx context.Context, key string, set *appsv1.ReplicaSet, pods []*corev1.Pod) error {
	err := together(len(pods), func(i int) error {
		pod := pods[i]
		if err := r.deletePod(ctx, pod, nil); err != nil {
			r.Events.Eventf(r.reference(set), corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			return err
		}
		r.mu.Lock()
		r.ledgers[key].doomed[pod.UID] = true
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
func (r *replicator) reference(set *appsv1.ReplicaSet) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: r.GroupVersion().String(), Kind: r.Kind, Namespace: set.Namespace, Name: set.Name, UID: set.UID, ResourceVersion: set.ResourceVersion,
	}
}

// together does n things at once, waits for all, and returns the first error.
func together(n int, do func(i int) error) error {
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
