package job

import (
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

// Progress is what a new status of a Job counts in addition to the former one.
type Progress struct {
	// SucceededPods and FailedPods are the pods whose tracking has ended. Of a Job with indexes, SucceededPods are the
	// completed indexes.
	SucceededPods, FailedPods int
	// SucceededIndexes and FailedIndexes are the indexes that have ended. They are 0 for a Job without indexes.
	SucceededIndexes, FailedIndexes int
	// Finished is the condition that ends the Job, or nil.
	Finished *batchv1.JobCondition
	// PolicyActions are the failed pods by the action of the pod failure policy that matched them.
	PolicyActions map[batchv1.PodFailurePolicyAction]int
}

// ProgressOf compares the status of a Job with the next one, which is nil if it has not changed. pods are the pods of
// the Job as observed, and writes the executed ones.
func ProgressOf(job *batchv1.Job, pods []*corev1.Pod, next *batchv1.JobStatus, writes []workloads.Write) Progress {
	out := Progress{PolicyActions: map[batchv1.PodFailurePolicyAction]int{}}
	for _, w := range writes {
		p, ok := w.Base.(*corev1.Pod)
		after, afterOK := w.Object.(*corev1.Pod)
		// Ignored failures are not in the status: the pods only lose the finalizer.
		if ok && afterOK && tracked(p) && !tracked(after) && failed(job, p) &&
			!matchFailurePolicy(job.Spec.PodFailurePolicy, p).counted() {
			out.PolicyActions[batchv1.PodFailurePolicyActionIgnore]++
		}
	}
	if next == nil {
		return out
	}
	out.FailedPods, out.SucceededPods = int(next.Failed-job.Status.Failed), int(next.Succeeded-job.Status.Succeeded)
	if indexed(job) && job.Spec.Completions != nil {
		total := func(text *string) int {
			if text == nil {
				return 0
			}
			return parseIndexes(*text, int(*job.Spec.Completions)).total()
		}
		out.SucceededIndexes = total(&next.CompletedIndexes) - total(&job.Status.CompletedIndexes)
		out.FailedIndexes = max(0, total(next.FailedIndexes)-total(job.Status.FailedIndexes))
		out.SucceededPods = out.SucceededIndexes
	}
	after := *job
	after.Status = *next
	if _, before := Finished(job); !before {
		out.Finished, _ = Finished(&after)
	}
	known := failedUIDs(&job.Status)
	for _, uid := range failedUIDs(next) {
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid })
		if i < 0 || slices.Contains(known, uid) {
			continue
		}
		if m := matchFailurePolicy(job.Spec.PodFailurePolicy, pods[i]); m.action != "" {
			out.PolicyActions[m.action]++
		}
	}
	return out
}

func failedUIDs(status *batchv1.JobStatus) []types.UID {
	if status.UncountedTerminatedPods == nil {
		return nil
	}
	return status.UncountedTerminatedPods.Failed
}
