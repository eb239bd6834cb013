package workloadhistory

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// jobRecord is what has happened to the pods of a Job.
type jobRecord struct {
	indexes           map[int]*indexRecord // index -1: of a Job without indexes
	succeeded, failed int                  // pods
	ended             map[types.UID]bool   // pods that are counted in succeeded or failed
	finished          bool
}

// indexRecord counts the ended pods of an index.
type indexRecord struct{ succeeded, failed int }

func (h *History) jobRecordOf(uid types.UID) *jobRecord {
	r := h.jobs[uid]
	if r == nil {
		r = &jobRecord{indexes: map[int]*indexRecord{}, ended: map[types.UID]bool{}}
		h.jobs[uid] = r
	}
	return r
}

func (r *jobRecord) index(i int) *indexRecord {
	if r.indexes[i] == nil {
		r.indexes[i] = &indexRecord{}
	}
	return r.indexes[i]
}

// indexOf returns the index of a pod, or -1.
func indexOf(p *corev1.Pod) int {
	i, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if err != nil {
		return -1
	}
	return i
}

func (h *History) checkJobPod(job *batchv1.Job, c podChange) {
	r := h.jobRecordOf(job.UID)
	if c.created {
		h.checkNewJobPod(job, r, c.pod)
	}
	if !terminated(c.pod) || r.ended[c.pod.UID] {
		return
	}
	r.ended[c.pod.UID] = true
	if c.pod.Status.Phase == corev1.PodSucceeded {
		r.succeeded++
		r.index(indexOf(c.pod)).succeeded++
	} else {
		r.failed++
		r.index(indexOf(c.pod)).failed++
	}
}

func (h *History) checkNewJobPod(job *batchv1.Job, r *jobRecord, pod *corev1.Pod) {
	if r.finished {
		h.violated("J2", "pod %s was created after the end of Job %s", pod.Name, job.Name)
	}
	pods := h.podsOf(job.UID)
	if n := count(pods, active); job.Spec.Parallelism != nil && n > int(*job.Spec.Parallelism) {
		h.violated("J2", "Job %s has %d active pods, its parallelism is %d", job.Name, n, *job.Spec.Parallelism)
	}
	i := indexOf(pod)
	if i < 0 {
		if n := count(pods, active) + r.succeeded; job.Spec.Completions != nil && n > int(*job.Spec.Completions) {
			h.violated("J1", "Job %s has %d active and succeeded pods, want at most %d", job.Name, n,
				*job.Spec.Completions)
		}
		return
	}
	index := r.index(i)
	if index.succeeded > 0 {
		h.violated("J1", "pod %s of index %d was created after the index succeeded", pod.Name, i)
	}
	if limit := job.Spec.BackoffLimitPerIndex; limit != nil && index.failed > int(*limit) {
		h.violated("J1", "pod %s of index %d was created after %d failures", pod.Name, i, index.failed)
	}
	if n := count(pods, func(p *corev1.Pod) bool { return active(p) && indexOf(p) == i }); n > 1 {
		h.violated("J1", "index %d of Job %s has %d active pods", i, job.Name, n)
	}
}

func (h *History) checkJob(before, after *batchv1.Job) {
	if after == nil {
		delete(h.jobs, before.UID)
		return
	}
	r := h.jobRecordOf(after.UID)
	if before != nil &&
		(after.Status.Succeeded < before.Status.Succeeded || after.Status.Failed < before.Status.Failed) {
		h.violated("J3", "the counts of Job %s decreased", after.Name)
	}
	if int(after.Status.Succeeded) > r.succeeded || int(after.Status.Failed) > r.failed {
		h.violated("J3", "Job %s counts %d succeeded and %d failed pods, got %d and %d", after.Name,
			after.Status.Succeeded, after.Status.Failed, r.succeeded, r.failed)
	}
	if r.finished || !finished(after) {
		return
	}
	r.finished = true
	h.Jobs++
	if int(after.Status.Succeeded) != r.succeeded || int(after.Status.Failed) != r.failed {
		h.violated("J3", "Job %s ended with %d succeeded and %d failed pods, got %d and %d", after.Name,
			after.Status.Succeeded, after.Status.Failed, r.succeeded, r.failed)
	}
	if after.Spec.CompletionMode == nil || *after.Spec.CompletionMode != batchv1.IndexedCompletion {
		return
	}
	completed, failed := r.intervals(after)
	if after.Status.CompletedIndexes != completed {
		h.violated("J3", "Job %s ended with the completed indexes %q, want %q", after.Name,
			after.Status.CompletedIndexes, completed)
	}
	if got := after.Status.FailedIndexes; got != nil && *got != failed || got == nil && failed != "" {
		h.violated("J3", "Job %s ended without the failed indexes %q", after.Name, failed)
	}
}

func finished(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// intervals returns the completed and the failed indexes as in the status of a Job.
func (r *jobRecord) intervals(job *batchv1.Job) (completed, failed string) {
	var done, bad []int
	for i, index := range r.indexes {
		switch limit := job.Spec.BackoffLimitPerIndex; {
		case index.succeeded > 0:
			done = append(done, i)
		case limit != nil && index.failed > int(*limit):
			bad = append(bad, i)
		}
	}
	return format(done), format(bad)
}

// format returns indexes as text, for example 1,3-5.
func format(indexes []int) string {
	slices.Sort(indexes)
	var out []string
	for n := 0; n < len(indexes); {
		last := n
		for last+1 < len(indexes) && indexes[last+1] == indexes[last]+1 {
			last++
		}
		text := strconv.Itoa(indexes[n])
		switch {
		case last == n+1:
			text = fmt.Sprintf("%d,%d", indexes[n], indexes[last])
		case last > n:
			text = fmt.Sprintf("%d-%d", indexes[n], indexes[last])
		}
		out, n = append(out, text), last+1
	}
	return strings.Join(out, ",")
}
