package differential

import (
	"fmt"
	"math/rand/v2"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	jobTimerSeconds = 3 // of a deadline or a TTL
	jobTimerRest    = 7 * time.Second
	// jobBackoffRest is longer than the back-off after the first failure, which is 10 s.
	jobBackoffRest = 14 * time.Second
)

func job(r *rand.Rand) workload {
	object := newJob(r, pick(r, imageSucceed, imageSucceed, imageFail, imageServe, imageFailOne))
	spec := &object.Spec
	if r.IntN(2) == 0 {
		setIndexed(spec)
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
		*spec.Parallelism = 1 // otherwise the time of the failure decides about the other pods
	}
	return jobScript(object, restTime)
}

// timedJob has one of the timers or policies.
func timedJob(r *rand.Rand) workload {
	object, rest := newJob(r, imageSucceed), jobTimerRest
	spec := &object.Spec
	setImageOf := func(image string) { setImage(&spec.Template, image) }
	switch r.IntN(6) {
	case 0: // index 0 succeeds, and the others run until the policy ends the Job
		setIndexed(spec)
		setImageOf(imageSucceedZero)
		spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{
			pick(r, batchv1.SuccessPolicyRule{SucceededIndexes: new("0")},
				batchv1.SuccessPolicyRule{SucceededCount: new(int32(1))})}}
	case 1: // each pod fails, and the second failure is the last one
		setImageOf(imageFail)
		*spec.Parallelism, *spec.BackoffLimit, rest = 1, 1, jobBackoffRest
	case 2: // each index fails once
		setIndexed(spec)
		setImageOf(imageFailFirst)
		spec.BackoffLimit, spec.BackoffLimitPerIndex, rest = nil, new(int32(1)), jobBackoffRest
	case 3:
		setImageOf(imageServe)
		spec.ActiveDeadlineSeconds = new(int64(jobTimerSeconds))
		spec.Suspend = new(r.IntN(3) == 0)
	case 4:
		setImageOf(pick(r, imageSucceed, imageFail))
		*spec.Parallelism = 1
		spec.TTLSecondsAfterFinished = new(int32(jobTimerSeconds))
	default: // a deleted pod is a failure
		setImageOf(imageServe)
		spec.PodReplacementPolicy = new(pick(r, batchv1.Failed, batchv1.TerminatingOrFailed))
		*spec.BackoffLimit, rest = 1, jobBackoffRest
	}
	return jobScript(object, rest)
}

// newJob returns a Job whose first failure is the last one.
func newJob(r *rand.Rand, image string) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: objectMeta(r), Spec: batchv1.JobSpec{
		Parallelism: new(int32(1 + r.IntN(3))), Completions: new(int32(1 + r.IntN(4))), BackoffLimit: new(int32(0)),
		Template: jobTemplate(image)}}
}

func jobTemplate(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{Name: "c", Image: image}}}}
}

func setIndexed(spec *batchv1.JobSpec) { spec.CompletionMode = new(batchv1.IndexedCompletion) }

func jobScript(object *batchv1.Job, rest time.Duration) workload {
	change := jobs.change
	return workload{jobs.create(object, object.Spec), func(r *rand.Rand) edit {
		parallelism, suspend := int32(r.IntN(2)), r.IntN(2) == 0
		switch r.IntN(8) {
		case 0, 1, 2:
			return change(fmt.Sprint("set parallelism ", parallelism), func(j *batchv1.Job) {
				j.Spec.Parallelism = &parallelism
			})
		case 3, 4:
			return change(fmt.Sprint("set suspend ", suspend), func(j *batchv1.Job) { j.Spec.Suspend = &suspend })
		case 5:
			return jobs.remove(r)
		default:
			return deletePod(r)
		}
	}, rest}
}
