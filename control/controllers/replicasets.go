package controllers

import (
	"context"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"berth/workloads"
	"berth/workloads/replicaset"
)

// replicaSetWorkers is the number of ReplicaSets, and of ReplicationControllers, that are processed concurrently.
const replicaSetWorkers = 5

const (
	// delayPerPod is how long a change of a pod may wait, for each pod of the set: the cost of a sync grows with the
	// number of pods, and most syncs of a rollout write a status.
	delayPerPod = 50 * time.Microsecond
	// undelayedPods is the number of pods up to which a change does not wait.
	undelayedPods = 50
	maxPodDelay   = 250 * time.Millisecond
)

// podDelay returns how long a change of one of so many pods may wait.
func podDelay(pods int32) time.Duration {
	if pods <= undelayedPods {
		return 0
	}
	return min(time.Duration(pods)*delayPerPod, maxPodDelay)
}

// newReplicaSetController runs workloads/replicaset: it manages the pods of ReplicaSets.
func newReplicaSetController(c Config) ([]*controller, error) {
	sets, pods := c.Informers.Apps().V1().ReplicaSets().Informer(), c.Informers.Core().V1().Pods().Informer()
	if err := indexByController(sets); err != nil {
		return nil, err
	}
	ctrl, err := newReconciler(c, workload[*appsv1.ReplicaSet, appsv1.ReplicaSetStatus]{
		kind:     replicaset.Kind.GroupVersionKind(),
		objects:  newObjectType[*appsv1.ReplicaSet](sets, c.Client.AppsV1().ReplicaSets),
		children: []*objectType{newObjectType[*corev1.Pod](pods, c.Client.CoreV1().Pods)},
		selector: func(set *appsv1.ReplicaSet) *metav1.LabelSelector { return set.Spec.Selector },
		decide: func(set *appsv1.ReplicaSet, now time.Time,
			failed *workloads.WriteError) workloads.Decision[appsv1.ReplicaSetStatus] {
			in := replicaset.Input{
				Now: now, Set: set, Pods: childrenAndOrphansOf[*corev1.Pod](pods, set), WriteError: failed,
			}
			// The order of deletions is read only if there may be a surplus.
			owner := metav1.GetControllerOfNoCopy(set)
			if owner != nil && set.Spec.Replicas != nil && len(in.Pods) > int(*set.Spec.Replicas) {
				in.Related = podsOfSiblings(sets, pods, owner)
			}
			return replicaset.Decide(in)
		},
		status: func(set *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &set.Status },
		updateStatus: func(ctx context.Context, set *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
			//nolint:wrapcheck // wrapped by the reconciler
			return c.Client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
		},
		workers:    replicaSetWorkers,
		childDelay: func(set *appsv1.ReplicaSet) time.Duration { return podDelay(set.Status.Replicas) },
		measure: func(s syncReport[*appsv1.ReplicaSet, appsv1.ReplicaSetStatus]) {
			countStale(replicaSetSkips, s.stale)
			if s.has(workloads.Delete) {
				measureReplicaSet(childrenOf[*corev1.Pod](pods, s.object), s.writes, time.Now())
			}
		},
	})
	return []*controller{ctrl}, err
}

// podsOfSiblings returns the pods of the ReplicaSets that an owner controls.
func podsOfSiblings(sets, pods cache.SharedIndexInformer, owner *metav1.OwnerReference) (out []*corev1.Pod) {
	for _, set := range byIndex[*appsv1.ReplicaSet](sets, controllerIndex, string(owner.UID)) {
		out = append(out, childrenOf[*corev1.Pod](pods, set)...)
	}
	return out
}

// newReplicationControllerController runs workloads/replicaset for ReplicationControllers.
func newReplicationControllerController(c Config) ([]*controller, error) {
	objects := c.Informers.Core().V1().ReplicationControllers().Informer()
	pods := c.Informers.Core().V1().Pods().Informer()
	ctrl, err := newReconciler(c, workload[*corev1.ReplicationController, corev1.ReplicationControllerStatus]{
		kind:     replicaset.ReplicationControllerKind.GroupVersionKind(),
		objects:  newObjectType[*corev1.ReplicationController](objects, c.Client.CoreV1().ReplicationControllers),
		children: []*objectType{newObjectType[*corev1.Pod](pods, c.Client.CoreV1().Pods)},
		selector: func(rc *corev1.ReplicationController) *metav1.LabelSelector {
			return &metav1.LabelSelector{MatchLabels: rc.Spec.Selector}
		},
		decide: func(rc *corev1.ReplicationController, now time.Time,
			failed *workloads.WriteError) workloads.Decision[corev1.ReplicationControllerStatus] {
			return replicaset.DecideController(replicaset.ControllerInput{
				Now: now, Controller: rc, Pods: childrenAndOrphansOf[*corev1.Pod](pods, rc), WriteError: failed,
			})
		},
		status: func(rc *corev1.ReplicationController) *corev1.ReplicationControllerStatus { return &rc.Status },
		updateStatus: func(ctx context.Context,
			rc *corev1.ReplicationController) (*corev1.ReplicationController, error) {
			client := c.Client.CoreV1().ReplicationControllers(rc.Namespace)
			return client.UpdateStatus(ctx, rc, metav1.UpdateOptions{}) //nolint:wrapcheck // by the reconciler
		},
		workers:    replicaSetWorkers,
		childDelay: func(rc *corev1.ReplicationController) time.Duration { return podDelay(rc.Status.Replicas) },
	})
	return []*controller{ctrl}, err
}
