package job

import (
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

var testNow = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// testJob returns a Job of one completion with the defaults of the API.
func testJob(edits ...func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "j", UID: "job-uid"},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), BackoffLimit: ptr.To[int32](6),
			CompletionMode: ptr.To(batchv1.NonIndexedCompletion), Suspend: new(false),
			PodReplacementPolicy: ptr.To(batchv1.TerminatingOrFailed),
			Selector:             &metav1.LabelSelector{MatchLabels: map[string]string{"job": "j"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job": "j"}},
				Spec: corev1.PodSpec{
					RestartPolicy:  corev1.RestartPolicyNever,
					InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "c"}},
				},
			},
		},
	}
	for _, edit := range edits {
		edit(job)
	}
	return job
}

// indexedJob makes a Job Indexed.
func indexedJob(completions int32) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Spec.CompletionMode, job.Spec.Completions = ptr.To(batchv1.IndexedCompletion), new(completions)
		job.Spec.Parallelism = new(completions)
	}
}

// started sets the status that a Job has after its first decision.
func started(job *batchv1.Job) {
	job.Status.StartTime = &metav1.Time{Time: testNow.Add(-time.Minute)}
	job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	job.Status.Ready, job.Status.Terminating = ptr.To[int32](0), ptr.To[int32](0)
}

// testPod returns a running pod of testJob with the finalizer.
func testPod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"job": "j"},
			OwnerReferences:   []metav1.OwnerReference{workloads.ControllerRef(testJob(), kind())},
			Finalizers:        []string{batchv1.JobTrackingFinalizer},
			CreationTimestamp: metav1.NewTime(testNow.Add(-time.Hour)),
		},
		Spec:   corev1.PodSpec{NodeName: "node"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

// exits ends the pod with an exit code the given time ago.
func exits(code int32, ago time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(testNow.Add(-ago))},
		}}}
	}
}

func atIndex(index int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: strconv.Itoa(index)}
	}
}

func counted(p *corev1.Pod) { p.Finalizers = nil }

func isReady(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(testNow),
	})
}

func deleted(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: testNow}, ptr.To[int64](0)
}
