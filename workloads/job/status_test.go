package job

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"berth/workloads/validation"
)

// acceptedStatus decides and checks that the API accepts the status. TestSim checks this too, in other situations.
func acceptedStatus(t *testing.T, job *batchv1.Job, pods ...*corev1.Pod) *batchv1.JobStatus {
	t.Helper()
	job.ResourceVersion = "1"
	status := Decide(Input{Now: testNow, Job: job, Pods: pods}).Status
	if status == nil {
		t.Fatal("the status does not change")
	}
	next := job.DeepCopy()
	next.Status = *status
	rules, _ := validation.RulesFor(schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"})
	if errs := rules.ValidateStatus(next, job); len(errs) > 0 {
		t.Errorf("status %+v: %v", status, errs)
	}
	return status
}

func withCondition(t batchv1.JobConditionType) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Status.Conditions = append(job.Status.Conditions,
			batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue})
	}
}

func suspend(job *batchv1.Job) { job.Spec.Suspend, job.Status.StartTime = new(true), nil }

func TestSuspendedJobEndsWithStartTime(t *testing.T) {
	t.Parallel()
	for _, target := range []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		status := acceptedStatus(t, testJob(started, suspend, withCondition(target)))
		if len(status.Conditions) != 2 || status.StartTime == nil || !status.StartTime.Time.Equal(testNow) {
			t.Errorf("%s: %+v", target, status)
		}
	}
	status := acceptedStatus(t, testJob(started, suspend, func(job *batchv1.Job) { job.Spec.Completions = new(int32) }))
	if status.CompletionTime == nil || status.StartTime != nil {
		t.Errorf("without work: %+v", status)
	}
}

func TestJobEndsAfterClockWasSetBack(t *testing.T) {
	t.Parallel()
	status := acceptedStatus(t, testJob(started, withCondition(batchv1.JobSuccessCriteriaMet), func(job *batchv1.Job) {
		job.Status.StartTime = &metav1.Time{Time: testNow.Add(time.Hour)}
	}))
	if !status.CompletionTime.Equal(status.StartTime) {
		t.Errorf("%+v", status)
	}
}

// TestIndexIsCompletedOrFailed: if one pod of an index succeeds and another one fails, the first result stays.
func TestIndexIsCompletedOrFailed(t *testing.T) {
	t.Parallel()
	job := func(completed string, dead *string) *batchv1.Job {
		return testJob(indexedJob(5), started, func(job *batchv1.Job) {
			job.Spec.BackoffLimitPerIndex = new(int32)
			job.Status.CompletedIndexes, job.Status.FailedIndexes = completed, dead
		})
	}
	success, failure := testPod("a", atIndex(2), exits(0, 0)), testPod("b", atIndex(2), exits(1, 0))
	for name, c := range map[string]struct {
		job       *batchv1.Job
		pods      []*corev1.Pod
		completed string
		dead      string
	}{
		"failed before":      {job("", new("2")), []*corev1.Pod{success}, "", "2"},
		"completed before":   {job("2", new("")), []*corev1.Pod{failure}, "2", ""},
		"both now":           {job("", nil), []*corev1.Pod{failure, success}, "2", ""},
		"both known already": {job("2", new("2,3")), []*corev1.Pod{testPod("c", atIndex(1), exits(0, 0))}, "1,2", "3"},
	} {
		status := acceptedStatus(t, c.job, c.pods...)
		if status.CompletedIndexes != c.completed || ptr.Deref(status.FailedIndexes, "") != c.dead {
			t.Errorf("%s: completed %q, failed %q", name, status.CompletedIndexes, *status.FailedIndexes)
		}
	}
	released := describe(Decide(Input{Now: testNow, Job: job("", new("2")), Pods: []*corev1.Pod{success}}))
	if released[:len("release a")] != "release a" {
		t.Errorf("the pod of a failed index: %s", released)
	}
}

// TestSucceededDecreasesOnlyWithParallelism: completions became fewer together with parallelism, which changed again
// before the next decision.
func TestSucceededDecreasesOnlyWithParallelism(t *testing.T) {
	t.Parallel()
	job := testJob(indexedJob(3), started, func(job *batchv1.Job) {
		job.Status.CompletedIndexes, job.Status.Succeeded = "0,2-4", 4
		job.Spec.Parallelism = new(int32(1))
	})
	if status := acceptedStatus(t, job); status.CompletedIndexes != "0,2" || status.Succeeded != 4 {
		t.Errorf("parallelism differs: completed %q, succeeded %d", status.CompletedIndexes, status.Succeeded)
	}
	job.Spec.Parallelism = new(int32(3))
	if status := acceptedStatus(t, job); status.CompletedIndexes != "0,2" || status.Succeeded != 2 {
		t.Errorf("parallelism is equal: completed %q, succeeded %d", status.CompletedIndexes, status.Succeeded)
	}
}
