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
