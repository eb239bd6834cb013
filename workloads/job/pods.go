package job

import (
	"math"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"berth/workloads"
)

// noIndex is the index of a pod without a valid completion index.
const noIndex = -1

func indexed(job *batchv1.Job) bool {
	return job.Spec.CompletionMode != nil && *job.Spec.CompletionMode == batchv1.IndexedCompletion
}

// replacesOnlyFailed reports whether a terminating pod is replaced only after it has terminated.
func replacesOnlyFailed(job *batchv1.Job) bool {
	return job.Spec.PodFailurePolicy != nil ||
		job.Spec.PodReplacementPolicy != nil && *job.Spec.PodReplacementPolicy == batchv1.Failed
}

func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

func terminating(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && !workloads.Terminated(pod)
}

// failed reports whether a pod counts as failed. A deleted pod does so at once unless only failed pods are replaced.
func failed(job *batchv1.Job, pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || terminating(pod) && !replacesOnlyFailed(job)
}

// completionIndex returns the index of a pod, or noIndex if it has none.
func completionIndex(pod *corev1.Pod) int {
	n, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil || n < 0 {
		return noIndex
	}
	return n
}

// annotatedCount returns a counter that an annotation has, or 0 if it is missing or invalid.
func annotatedCount(pod *corev1.Pod, key string) int {
	n, err := strconv.Atoi(pod.Annotations[key])
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}

// indexFailures returns how many failures of the pod's index came before the pod: those that count, and all.
func indexFailures(pod *corev1.Pod) (counted, all int) {
	counted = annotatedCount(pod, batchv1.JobIndexFailureCountAnnotation)
	return counted, counted + annotatedCount(pod, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// withFinalizer returns a copy that has the tracking finalizer.
func withFinalizer(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	if !tracked(out) {
		out.Finalizers = append(out.Finalizers, batchv1.JobTrackingFinalizer)
	}
	return out
}

// withoutFinalizer returns a copy that has no tracking finalizer.
func withoutFinalizer(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Finalizers = slices.DeleteFunc(out.Finalizers, func(f string) bool {
		return f == batchv1.JobTrackingFinalizer
	})
	return out
}

// untrack returns the write that removes the tracking finalizer.
func untrack(pod *corev1.Pod) workloads.Write {
	return workloads.Write{Verb: workloads.Patch, Base: pod, Object: withoutFinalizer(pod)}
}

func ready(pod *corev1.Pod) bool { return workloads.ReadySince(pod) != nil }

func readySince(pod *corev1.Pod) time.Time {
	if at := workloads.ReadySince(pod); at != nil {
		return at.Time
	}
	return time.Time{}
}

func trueLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
