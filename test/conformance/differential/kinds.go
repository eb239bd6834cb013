package differential

import (
	"context"
	"encoding/json"
	"math/rand/v2"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
)

// typedClient reads and writes the objects of one type in a namespace.
type typedClient[T any] interface {
	Create(ctx context.Context, obj T, o metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Update(ctx context.Context, obj T, o metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// kind makes the edits of the workload of a script, which has the name "w".
type kind[T runtime.Object] struct {
	name   string
	client func(p *plane, namespace string) typedClient[T]
}

var (
	deployments = kind[*appsv1.Deployment]{"Deployment",
		func(p *plane, namespace string) typedClient[*appsv1.Deployment] {
			return p.client.AppsV1().Deployments(namespace)
		}}
	statefulSets = kind[*appsv1.StatefulSet]{"StatefulSet",
		func(p *plane, namespace string) typedClient[*appsv1.StatefulSet] {
			return p.client.AppsV1().StatefulSets(namespace)
		}}
	daemonSets = kind[*appsv1.DaemonSet]{"DaemonSet",
		func(p *plane, namespace string) typedClient[*appsv1.DaemonSet] {
			return p.client.AppsV1().DaemonSets(namespace)
		}}
	replicationControllers = kind[*corev1.ReplicationController]{"ReplicationController",
		func(p *plane, namespace string) typedClient[*corev1.ReplicationController] {
			return p.client.CoreV1().ReplicationControllers(namespace)
		}}
	jobs = kind[*batchv1.Job]{"Job",
		func(p *plane, namespace string) typedClient[*batchv1.Job] { return p.client.BatchV1().Jobs(namespace) }}
	cronJobs = kind[*batchv1.CronJob]{"CronJob",
		func(p *plane, namespace string) typedClient[*batchv1.CronJob] {
			return p.client.BatchV1().CronJobs(namespace)
		}}
)

// create creates the workload. spec describes it in the report.
func (k kind[T]) create(object T, spec any) edit {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // API types can be encoded
	}
	return edit{"create " + k.name + " " + string(text), func(ctx context.Context, p *plane, namespace string) error {
		copied, _ := object.DeepCopyObject().(T) // of the same type
		_, err := k.client(p, namespace).Create(ctx, copied, metav1.CreateOptions{})
		return err
	}}
}

// change edits the workload, unless an earlier edit has deleted it.
func (k kind[T]) change(what string, f func(T)) edit {
	return edit{what, func(ctx context.Context, p *plane, namespace string) error {
		client := k.client(p, namespace)
		return gone(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			object, err := client.Get(ctx, "w", metav1.GetOptions{})
			if err != nil {
				return err
			}
			f(object)
			_, err = client.Update(ctx, object, metav1.UpdateOptions{})
			return err
		}))
	}}
}

// remove deletes the workload with a propagation policy.
func (k kind[T]) remove(r *rand.Rand) edit {
	policy := pick(r, metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
		metav1.DeletePropagationOrphan)
	return edit{"delete with policy " + string(policy), func(ctx context.Context, p *plane, namespace string) error {
		return gone(k.client(p, namespace).Delete(ctx, "w", metav1.DeleteOptions{PropagationPolicy: &policy}))
	}}
}

// gone returns nil for a missing object.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
