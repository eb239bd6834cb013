package differential

import (
	"context"
	"fmt"
	"math/rand/v2"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func job(r *rand.Rand) (edit, func(*rand.Rand) edit) {
	parallelism, completions, backoff := int32(1+r.IntN(3)), int32(1+r.IntN(4)), int32(0)
	spec := batchv1.JobSpec{Parallelism: &parallelism, Completions: &completions, BackoffLimit: &backoff,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c",
				Image: pick(r, imageSucceed, imageSucceed, imageFail, imageServe, imageFailOne)}}}}}
	if r.IntN(2) == 0 {
		mode := batchv1.IndexedCompletion
		spec.CompletionMode = &mode
		if one := int32(0); r.IntN(3) == 0 {
			spec.BackoffLimit, spec.BackoffLimitPerIndex = nil, &one
		}
	}
	if suspend := true; r.IntN(5) == 0 {
		spec.Suspend = &suspend
	}
	if r.IntN(5) == 0 {
		spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action: pick(r, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionCount),
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{1}}}}}
	}
	if image := spec.Template.Spec.Containers[0].Image; (image == imageFail || image == imageFailOne) &&
		spec.BackoffLimitPerIndex == nil {
		parallelism = 1 // otherwise the time of the failure decides about the other pods
	}
	object := &batchv1.Job{ObjectMeta: objectMeta(r), Spec: spec}
	create := edit{fmt.Sprintf("create Job %+v", spec), func(ctx context.Context, p *plane, namespace string) error {
		_, err := p.client.BatchV1().Jobs(namespace).Create(ctx, object.DeepCopy(), metav1.CreateOptions{})
		return err
	}}
	change := func(what string, f func(*batchv1.Job)) edit {
		return edit{what, func(ctx context.Context, p *plane, namespace string) error {
			return updated(func() error {
				j, err := p.client.BatchV1().Jobs(namespace).Get(ctx, "w", metav1.GetOptions{})
				if err != nil {
					return err
				}
				f(j)
				_, err = p.client.BatchV1().Jobs(namespace).Update(ctx, j, metav1.UpdateOptions{})
				return err
			})
		}}
	}
	return create, func(r *rand.Rand) edit {
		parallelism, suspend := int32(r.IntN(2)), r.IntN(2) == 0
		switch r.IntN(8) {
		case 0, 1, 2:
			return change(fmt.Sprint("set parallelism ", parallelism), func(j *batchv1.Job) {
				j.Spec.Parallelism = &parallelism
			})
		case 3, 4:
			return change(fmt.Sprint("set suspend ", suspend), func(j *batchv1.Job) { j.Spec.Suspend = &suspend })
		case 5:
			return deleteWorkload(r, func(ctx context.Context, p *plane, namespace string,
				o metav1.DeleteOptions) error {
				return gone(p.client.BatchV1().Jobs(namespace).Delete(ctx, "w", o))
			})
		default:
			return deletePod(r)
		}
	}
}
