package controllers

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"berth/workloads/job"
)

// TestDeadlineOfJobWhosePodsAreRejected: a quota delays neither the start of a Job nor its deadline.
func TestDeadlineOfJobWhosePodsAreRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labels := map[string]string{"job": "once"}
		j := &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "once", UID: "once"},
			Spec: batchv1.JobSpec{
				Parallelism: new(int32(2)), Completions: new(int32(2)), ActiveDeadlineSeconds: new(int64(60)),
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
			},
		}
		client := newNamingClient(j)
		client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("exceeded quota")
		})
		startControllers(t, Config{Client: client}, []string{Jobs})
		status := func() batchv1.JobStatus {
			t.Helper()
			synctest.Wait()
			got, err := client.BatchV1().Jobs("default").Get(t.Context(), "once", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return got.Status
		}
		time.Sleep(time.Second)
		if got := status(); got.StartTime == nil {
			t.Errorf("not started: %+v", got)
		}
		time.Sleep(60 * time.Second) // retries are up to 30 s apart
		end, finished := job.Finished(&batchv1.Job{Status: status()})
		if !finished || end.Reason != batchv1.JobReasonDeadlineExceeded {
			t.Errorf("after the deadline: %+v", status())
		}
	})
}

// TestJobBackoffsFollowWrites checks when the back-off of a Job is kept: after a written status, until a write fails,
// the Job finishes or the Job is gone.
func TestJobBackoffsFollowWrites(t *testing.T) {
	t.Parallel()
	b := newJobBackoffs()
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j", UID: "1"}}
	sync := func(failures int, status *batchv1.JobStatus, exists bool) {
		b.decided(j, job.Backoff{Failures: failures})
		b.synced(syncReport[*batchv1.Job, batchv1.JobStatus]{object: j, status: status}, exists)
	}
	check := func(what string, want int) { // -1: none is known
		t.Helper()
		got := -1
		if kept := b.of(j); kept != nil {
			got = kept.Failures
		}
		if got != want || len(b.pending) > 0 {
			t.Errorf("%s: got %d failures, want %d; pending: %v", what, got, want, b.pending)
		}
	}
	written := &batchv1.JobStatus{}
	check("at the start", -1)
	sync(1, written, true)
	check("after a written status", 1)
	b.synced(syncReport[*batchv1.Job, batchv1.JobStatus]{object: j}, true)
	check("after a sync that changes no status", 1)
	sync(2, nil, true)
	check("after a failed write", -1)
	sync(2, written, true)
	sync(2, &batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed,
		Status: corev1.ConditionTrue}}}, true)
	check("of a finished Job", -1)
	sync(3, written, true)
	sync(3, written, false)
	check("of a Job that is gone", -1)
	sync(4, written, true)
	b.forget(cache.DeletedFinalStateUnknown{Obj: j})
	check("of a deleted Job", -1)
}
