package controllers

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// replicaKind abstracts ReplicaSets and ReplicationControllers. Both are handled as ReplicaSets.
// Objects returned by get and list belong to the informer and must not be modified.
type replicaKind struct {
	schema.GroupVersionKind

	informer cache.SharedIndexInformer
	get      func(namespace, name string) (*appsv1.ReplicaSet, error)
	list     func(namespace string) ([]*appsv1.ReplicaSet, error)
	// reads from the API server
	live             func(ctx context.Context, namespace, name string) (metav1.Object, error)
	statusEqual      func(a, b *appsv1.ReplicaSet) bool                      // compares the status
	updateStatusFunc func(ctx context.Context, set *appsv1.ReplicaSet) error // writes the status
}

func replicaSetKind(c Config) replicaKind {
	sets := c.Informers.Apps().V1().ReplicaSets()
	return replicaKind{
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		informer:         sets.Informer(),
		get: func(namespace, name string) (*appsv1.ReplicaSet, error) {
			return sets.Lister().ReplicaSets(namespace).Get(name) //nolint:wrapcheck // checked by ignoreNotFound
		},
		list: func(namespace string) ([]*appsv1.ReplicaSet, error) {
			return sets.Lister().ReplicaSets(namespace).List(labels.Everything()) //nolint:wrapcheck // never fails
		},
		live: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			//nolint:wrapcheck // wrapped by the caller
			return c.Client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		statusEqual: func(a, b *appsv1.ReplicaSet) bool { return apiequality.Semantic.DeepEqual(a.Status, b.Status) },
		updateStatusFunc: func(ctx context.Context, set *appsv1.ReplicaSet) error {
			_, err := c.Client.AppsV1().ReplicaSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
			return err //nolint:wrapcheck // wrapped by the caller
		},
	}
}

func replicationControllerKind(c Config) replicaKind {
	sets := c.Informers.Core().V1().ReplicationControllers()
	return replicaKind{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ReplicationController"),
		informer:         sets.Informer(),
		get: func(namespace, name string) (*appsv1.ReplicaSet, error) {
			rc, err := sets.Lister().ReplicationControllers(namespace).Get(name)
			if err != nil {
				return nil, err //nolint:wrapcheck // checked by ignoreNotFound
			}
			return asReplicaSet(rc), nil
		},
		list: func(namespace string) ([]*appsv1.ReplicaSet, error) {
			all, err := sets.Lister().ReplicationControllers(namespace).List(labels.Everything())
			out := make([]*appsv1.ReplicaSet, 0, len(all))
			for _, rc := range all {
				out = append(out, asReplicaSet(rc))
			}
			return out, err //nolint:wrapcheck // the lister does not fail
		},
		live: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			//nolint:wrapcheck // wrapped by the caller
			return c.Client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		statusEqual: func(a, b *appsv1.ReplicaSet) bool {
			return apiequality.Semantic.DeepEqual(asReplicationController(a).Status, asReplicationController(b).Status)
		},
		updateStatusFunc: func(ctx context.Context, set *appsv1.ReplicaSet) error {
			rc := asReplicationController(set)
			_, err := c.Client.CoreV1().ReplicationControllers(set.Namespace).UpdateStatus(ctx, rc,
				metav1.UpdateOptions{})
			return err //nolint:wrapcheck // wrapped by the caller
		},
	}
}

// asReplicaSet converts rc. The result shares memory with rc.
func asReplicaSet(rc *corev1.ReplicationController) *appsv1.ReplicaSet {
	out := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:     rc.Status.ReadyReplicas,
			AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		out.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			Reason: c.Reason, Message: c.Message,
		})
	}
	return out
}

// asReplicationController is the inverse of asReplicaSet.
func asReplicationController(set *appsv1.ReplicaSet) *corev1.ReplicationController {
	out := &corev1.ReplicationController{
		ObjectMeta: set.ObjectMeta,
		Spec: corev1.ReplicationControllerSpec{
			Replicas: set.Spec.Replicas, MinReadySeconds: set.Spec.MinReadySeconds,
			Selector: set.Spec.Selector.MatchLabels, Template: &set.Spec.Template,
		},
		Status: corev1.ReplicationControllerStatus{
			Replicas: set.Status.Replicas, FullyLabeledReplicas: set.Status.FullyLabeledReplicas,
			ReadyReplicas:     set.Status.ReadyReplicas,
			AvailableReplicas: set.Status.AvailableReplicas, ObservedGeneration: set.Status.ObservedGeneration,
		},
	}
	for _, c := range set.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime,
			Reason:             c.Reason, Message: c.Message,
		})
	}
	return out
}
