package differential

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	quotaPods = 2
	// quotaRest is longer than the deadline of a Job whose pods are rejected.
	quotaRest            = 9 * time.Second
	quotaDeadlineSeconds = 5
)

// rejectedWorkload has more pods than a quota allows. Its pods work and are only scaled: other edits replace pods, and
// when the controllers try that again depends on how often the quota has rejected a pod before.
func rejectedWorkload(r *rand.Rand) workload {
	var w workload
	replicas := int32(quotaPods + 1 + r.IntN(2))
	scale := func(change func(int32) edit) func(*rand.Rand) edit {
		return func(r *rand.Rand) edit { return change(int32(r.IntN(quotaPods + 3))) }
	}
	scaleTo := func(n int32) string { return fmt.Sprint("scale to ", n) }
	switch r.IntN(4) {
	case 0:
		object := newDeployment(r)
		object.Spec.Replicas, object.Spec.Paused = &replicas, false
		setImage(&object.Spec.Template, workingImage(r))
		w = workload{deployments.create(object, object.Spec), scale(func(n int32) edit {
			return deployments.change(scaleTo(n), func(d *appsv1.Deployment) { d.Spec.Replicas = &n })
		}), quotaRest}
	case 1:
		object := newStatefulSet(r)
		// Which of the pods of a parallel set are rejected depends on the order of concurrent requests.
		object.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
		object.Spec.Replicas = &replicas
		setImage(&object.Spec.Template, workingImage(r))
		w = workload{statefulSets.create(object, object.Spec), scale(func(n int32) edit {
			return statefulSets.change(scaleTo(n), func(s *appsv1.StatefulSet) { s.Spec.Replicas = &n })
		}), quotaRest}
	case 2:
		pod := template(workingImage(r))
		object := &corev1.ReplicationController{ObjectMeta: objectMeta(r), Spec: corev1.ReplicationControllerSpec{
			Replicas: &replicas, Selector: map[string]string{"app": "w"}, Template: &pod}}
		w = workload{replicationControllers.create(object, object.Spec), scale(func(n int32) edit {
			return replicationControllers.change(scaleTo(n),
				func(c *corev1.ReplicationController) { c.Spec.Replicas = &n })
		}), quotaRest}
	default:
		object := newJob(r, imageServe)
		object.Spec.Parallelism, object.Spec.Completions = &replicas, new(int32(4))
		if r.IntN(2) == 0 {
			object.Spec.ActiveDeadlineSeconds = new(int64(quotaDeadlineSeconds))
		}
		w = workload{jobs.create(object, object.Spec), scale(func(n int32) edit {
			return jobs.change(fmt.Sprint("set parallelism ", n), func(j *batchv1.Job) { j.Spec.Parallelism = &n })
		}), quotaRest}
	}
	create := w.create
	w.create = edit{create.what + " with a quota", func(ctx context.Context, p *plane, namespace string) error {
		if err := p.createQuota(ctx, namespace); err != nil {
			return err
		}
		return create.apply(ctx, p, namespace)
	}}
	return w
}

// createQuota limits the pods of a namespace and waits until the limit is in force.
func (p *plane) createQuota(ctx context.Context, namespace string) error {
	quotas := p.client.CoreV1().ResourceQuotas(namespace)
	limit := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(quotaPods, resource.DecimalSI)}
	if _, err := quotas.Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: corev1.ResourceQuotaSpec{Hard: limit}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, restTimeout, true,
		func(ctx context.Context) (bool, error) {
			q, err := quotas.Get(ctx, "pods", metav1.GetOptions{})
			return err == nil && len(q.Status.Hard) > 0 && len(q.Status.Used) > 0, err
		})
	if err != nil {
		return fmt.Errorf("%s: wait for the quota of %s: %w", p.name, namespace, err)
	}
	return nil
}
