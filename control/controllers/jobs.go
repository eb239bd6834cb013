package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"berth/workloads"
	"berth/workloads/job"
)

const jobWorkers = 5

// newJobController runs workloads/job: it manages the pods of Jobs, and removes the
// tracking finalizer of orphaned pods.
func newJobController(c Config) ([]*controller, error) {
	jobs, pods := c.Informers.Batch().V1().Jobs().Informer(), c.Informers.Core().V1().Pods().Informer()
	if err := c.indexPods(); err != nil {
		return nil, err
	}
	w, backoffs := c.jobWorkload(), newJobBackoffs()
	w.children = []*objectType{newObjectType[*corev1.Pod](pods, c.Client.CoreV1().Pods)}
	w.selector = func(j *batchv1.Job) *metav1.LabelSelector { return j.Spec.Selector }
	w.decide = func(j *batchv1.Job, now time.Time,
		failed *workloads.WriteError) workloads.Decision[batchv1.JobStatus] {
		in := job.Input{
			Now: now, Job: j, Pods: childrenAndOrphansOf[*corev1.Pod](pods, j), WriteError: failed,
			Backoff: backoffs.of(j),
		}
		d := job.Decide(in)
		if d.Status != nil {
			backoffs.decided(j, job.NextBackoff(in))
		}
		return d
	}
	w.workers = jobWorkers
	w.childDelay = func(j *batchv1.Job) time.Duration { return podDelay(podsOfJob(&j.Status)) }
	w.synced = func(s syncReport[*batchv1.Job, batchv1.JobStatus]) {
		current, _ := w.objects.stored(s.object.Namespace + "/" + s.object.Name).(*batchv1.Job)
		backoffs.synced(s, current != nil && current.UID == s.object.UID)
	}
	w.measure = func(s syncReport[*batchv1.Job, batchv1.JobStatus]) {
		measureJob(s, childrenOf[*corev1.Pod](pods, s.object))
	}
	ctrl, err := newReconciler(c, w)
	if err != nil {
		return nil, err
	}
	if err := ctrl.addEventHandler(pods, trackedPodsHandler()); err != nil {
		return nil, err
	}
	if err := ctrl.addEventHandler(jobs, cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if j, ok := obj.(*batchv1.Job); ok && managedByOther(j) != "" {
			jobsOfOthers.WithLabelValues(managedByOther(j)).Inc()
		}
	}, UpdateFunc: func(before, after any) {
		old, oldIs := before.(*batchv1.Job)
		if j, is := after.(*batchv1.Job); is && oldIs && old.UID != j.UID { // it was deleted and created again
			backoffs.forget(old)
		}
	}, DeleteFunc: backoffs.forget}); err != nil {
		return nil, err
	}
	orphans, err := newOrphanedJobPodController(c, jobs, pods)
	return []*controller{ctrl, orphans}, err
}

// podsOfJob returns how many pods a Job has had, which a sync observes unless they were deleted.
func podsOfJob(s *batchv1.JobStatus) int32 {
	n := s.Active + s.Succeeded + s.Failed + ptr.Deref(s.Terminating, 0)
	if u := s.UncountedTerminatedPods; u != nil {
		n += int32(len(u.Succeeded) + len(u.Failed))
	}
	return n
}

// jobBackoffs keeps the back-off of each Job. It is safe for concurrent use.
type jobBackoffs struct {
	mu      sync.Mutex
	kept    map[types.UID]job.Backoff // after the last written status
	pending map[types.UID]job.Backoff // after the status of the decision in progress
}

func newJobBackoffs() *jobBackoffs {
	return &jobBackoffs{kept: map[types.UID]job.Backoff{}, pending: map[types.UID]job.Backoff{}}
}

// of returns the back-off of a Job, or nil if none is known.
func (b *jobBackoffs) of(j *batchv1.Job) *job.Backoff {
	b.mu.Lock()
	defer b.mu.Unlock()
	if kept, found := b.kept[j.UID]; found {
		return &kept
	}
	return nil
}

// decided is called for each decision that writes a status.
func (b *jobBackoffs) decided(j *batchv1.Job, next job.Backoff) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending[j.UID] = next
}

// synced is called after each sync. It keeps the back-off if the status was written. After a failed write, the store
// may have the status: the pods decide then. exists is false for a Job that is gone.
func (b *jobBackoffs) synced(s syncReport[*batchv1.Job, batchv1.JobStatus], exists bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	uid := s.object.UID
	next, decided := b.pending[uid]
	delete(b.pending, uid)
	switch {
	case !exists:
		delete(b.kept, uid)
	case !decided:
	case s.status == nil || hasFinished(s.status):
		delete(b.kept, uid)
	default:
		b.kept[uid] = next
	}
}

func hasFinished(status *batchv1.JobStatus) bool {
	_, finished := job.Finished(&batchv1.Job{Status: *status})
	return finished
}

// forget is called for a deleted Job.
func (b *jobBackoffs) forget(obj any) {
	obj = lastKnown(obj)
	if j, ok := obj.(*batchv1.Job); ok {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.kept, j.UID)
		delete(b.pending, j.UID)
	}
}

// newTTLAfterFinishedController deletes finished Jobs after their ttlSecondsAfterFinished.
func newTTLAfterFinishedController(c Config) ([]*controller, error) {
	w := c.jobWorkload()
	w.decide = func(j *batchv1.Job, now time.Time, _ *workloads.WriteError) workloads.Decision[batchv1.JobStatus] {
		return job.DecideTTL(now, j)
	}
	w.measure = func(s syncReport[*batchv1.Job, batchv1.JobStatus]) {
		if end, finished := job.Finished(s.object); finished && s.has(workloads.Delete) {
			measureExpiry(s.object, end.LastTransitionTime.Time, time.Now())
		}
	}
	w.workers = jobWorkers
	ctrl, err := newReconciler(c, w)
	return []*controller{ctrl}, err
}

// jobWorkload returns what both controllers of Jobs have in common.
func (c Config) jobWorkload() workload[*batchv1.Job, batchv1.JobStatus] {
	return workload[*batchv1.Job, batchv1.JobStatus]{
		kind: batchv1.SchemeGroupVersion.WithKind("Job"),
		objects: newObjectType[*batchv1.Job](c.Informers.Batch().V1().Jobs().Informer(),
			c.Client.BatchV1().Jobs),
		status: func(j *batchv1.Job) *batchv1.JobStatus { return &j.Status },
		updateStatus: func(ctx context.Context, j *batchv1.Job) (*batchv1.Job, error) {
			//nolint:wrapcheck // wrapped by the reconciler
			return c.Client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, j, metav1.UpdateOptions{})
		},
	}
}

// orphanedJobPods removes the tracking finalizer of pods whose Job no longer exists. Otherwise they could
// not be deleted.
type orphanedJobPods struct {
	Config
	jobs, pods cache.SharedIndexInformer
}

func newOrphanedJobPodController(c Config, jobs, pods cache.SharedIndexInformer) (*controller, error) {
	c.queueName = "job_orphan_pod"
	o := &orphanedJobPods{c, jobs, pods}
	ctrl := c.newController(o.sync)
	if err := ctrl.watch(pods, o.keysOfPod); err != nil {
		return nil, err
	}
	return ctrl, ctrl.addEventHandler(jobs, cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		obj = lastKnown(obj)
		if j, ok := obj.(*batchv1.Job); ok {
			for _, pod := range childrenOf[*corev1.Pod](pods, j) {
				ctrl.queue.Add(pod.Namespace + "/" + pod.Name)
			}
		}
	}})
}

// keysOfPod returns the key of a pod whose Job is not in the informer.
func (o *orphanedJobPods) keysOfPod(obj any) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok || len(job.DecideOrphan(pod, o.jobOf(pod))) == 0 {
		return nil
	}
	return objectKey(pod)
}

// jobOf returns the Job in the informer that controls a pod, or nil.
func (o *orphanedJobPods) jobOf(pod *corev1.Pod) *batchv1.Job {
	j, _ := controllerIn[*batchv1.Job](o.jobs, "Job", pod)
	return j
}

func (o *orphanedJobPods) sync(ctx context.Context, key string) (time.Duration, error) {
	obj, found, err := o.pods.GetIndexer().GetByKey(key)
	pod, ok := obj.(*corev1.Pod)
	if err != nil || !found || !ok {
		return 0, nil //nolint:nilerr // the informer reads from memory and does not fail
	}
	owner := o.jobOf(pod)
	if owner == nil {
		// The informer of Jobs may be older than that of pods.
		if owner, err = o.liveJobOf(ctx, pod); err != nil {
			return 0, err
		}
	}
	for _, w := range job.DecideOrphan(pod, owner) {
		body, err := patchBody(w)
		if err != nil {
			return 0, err
		}
		_, err = o.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{})
		if err != nil && !replaced(err) {
			return 0, fmt.Errorf("remove finalizer of pod %s: %w", key, err)
		}
		o.Log.Info("finalizer of orphaned pod removed", "pod", key)
	}
	return 0, nil
}

// liveJobOf reads the Job that controls a pod from the API, or returns nil if there is none.
func (o *orphanedJobPods) liveJobOf(ctx context.Context, pod *corev1.Pod) (*batchv1.Job, error) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != "Job" {
		return nil, nil //nolint:nilnil // no Job is an answer
	}
	j, err := o.Client.BatchV1().Jobs(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && j.UID != ref.UID:
		return nil, nil //nolint:nilnil // no Job is an answer
	case err != nil:
		return nil, fmt.Errorf("get job of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return j, nil
}
