package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

// Input is what a decision about a Job depends on.
type Input struct {
	Now time.Time
	Job *batchv1.Job
	// Pods are the pods of the namespace that the Job controls or that have no controller.
	Pods []*corev1.Pod
	// Backoff is what NextBackoff returned for the last status that was written. Nil: unknown, after a start of the
	// controller.
	Backoff    *Backoff
	WriteError *workloads.WriteError // the failure of a write of the last decision
}

// Decide returns what the Job needs next. It returns nothing for a Job that another controller manages.
func Decide(in Input) workloads.Decision[batchv1.JobStatus] {
	job := in.Job
	if m := job.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		return workloads.Decision[batchv1.JobStatus]{}
	}
	if m := job.Spec.CompletionMode; m != nil && *m != batchv1.NonIndexedCompletion && *m != batchv1.IndexedCompletion {
		return workloads.Decision[batchv1.JobStatus]{Events: []workloads.Event{{Type: corev1.EventTypeWarning,
			Reason: "UnknownCompletionMode", Message: "Skipped Job sync because completion mode is unknown"}}}
	}
	selector, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		return workloads.Decision[batchv1.JobStatus]{} // the API accepts no such Job
	}
	s := newState(in)
	if _, finished := Finished(job); finished {
		s.cleanUp()
		return s.out
	}
	s.claim(selector)
	s.observe()
	s.startTime()
	target := s.target()
	if in.WriteError == nil { // otherwise only the status counts, which is that of the observed pods
		s.managePods(target)
	}
	if target == nil {
		if target = s.completion(); target == nil && job.DeletionTimestamp == nil {
			s.suspension()
		}
	}
	s.track(target)
	s.out.Writes = slices.Concat(s.out.Writes, s.podWrites)
	s.completeStatus(target)
	s.updateStatus()
	return s.out
}

// managePods creates and deletes pods.
func (s *state) managePods(target *batchv1.JobCondition) {
	switch {
	case target != nil:
		s.deleteActive(target)
	case s.Job.DeletionTimestamp == nil:
		s.manage()
	}
}

// Finished returns the condition Complete or Failed if the Job has it.
func Finished(job *batchv1.Job) (*batchv1.JobCondition, bool) {
	for _, t := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		if c := condition(job.Status.Conditions, t); c != nil && c.Status == corev1.ConditionTrue {
			return c, true
		}
	}
	return nil, false
}

// state is a decision in progress.
type state struct {
	Input
	out    workloads.Decision[batchv1.JobStatus]
	status batchv1.JobStatus // the status to write
	// podWrites create and delete pods. They come last: a rejected one must not prevent that finished pods are counted.
	podWrites []workloads.Write

	owned  []*corev1.Pod // all pods of the Job, in the order of their indexes and names
	active []*corev1.Pod

	// numbers after the writes
	activeCount, readyCount, terminatingCount int

	newSucceeded, newFailed        []*corev1.Pod // not yet known to the status
	uncounted                      map[types.UID]bool
	succeeded, failures            int     // known to the status or new
	completed, completedBefore     indexes // only Indexed: all, and those known to the status
	failedIndexes, failedBefore    indexes // only with backoffLimitPerIndex
	delayed                        map[int]*corev1.Pod
	completions                    int
	suspended, perIndex, isIndexed bool
}

func newState(in Input) *state {
	spec := &in.Job.Spec
	s := &state{
		Input: in, status: *in.Job.Status.DeepCopy(), completions: int(ptr.Deref(spec.Completions, 0)),
		suspended: ptr.Deref(spec.Suspend, false), isIndexed: indexed(in.Job), uncounted: map[types.UID]bool{},
	}
	s.perIndex = s.isIndexed && spec.BackoffLimitPerIndex != nil
	if s.status.UncountedTerminatedPods == nil {
		s.status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	return s
}

// byIndex sorts pods by index and name, so that decisions do not depend on the order of observation.
func byIndex(pods []*corev1.Pod) {
	indexes := make(map[*corev1.Pod]int, len(pods))
	for _, p := range pods {
		indexes[p] = completionIndex(p)
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(indexes[a], indexes[b]), cmp.Compare(a.Name, b.Name))
	})
}

// observe counts the pods.
func (s *state) observe() {
	byIndex(s.owned)
	u := s.status.UncountedTerminatedPods
	s.rememberUncounted()
	for _, p := range s.owned {
		switch {
		case workloads.Active(p):
			s.active = append(s.active, p)
			if ready(p) {
				s.readyCount++
			}
		case terminating(p):
			s.terminatingCount++
		}
		s.observeEnd(p)
	}
	s.activeCount = len(s.active)
	s.succeeded = int(s.status.Succeeded) + len(s.newSucceeded) + len(u.Succeeded)
	s.failures = int(s.status.Failed) + len(u.Failed)
	for _, p := range s.newFailed {
		if matchFailurePolicy(s.Job.Spec.PodFailurePolicy, p).counted() {
			s.failures++
		}
	}
	if s.isIndexed {
		s.observeIndexes()
	}
}

func (s *state) rememberUncounted() {
	u := s.status.UncountedTerminatedPods
	for _, uid := range slices.Concat(u.Succeeded, u.Failed) {
		s.uncounted[uid] = true
	}
}

// observeEnd notes a pod that has ended and that the status does not know yet.
func (s *state) observeEnd(p *corev1.Pod) {
	switch {
	case !tracked(p) || s.uncounted[p.UID] || !s.valid(p):
	case p.Status.Phase == corev1.PodSucceeded:
		s.newSucceeded = append(s.newSucceeded, p)
	case failed(s.Job, p):
		s.newFailed = append(s.newFailed, p)
	}
}

// valid reports whether the pod counts: a pod of an Indexed Job needs an index below completions.
func (s *state) valid(p *corev1.Pod) bool {
	i := completionIndex(p)
	return !s.isIndexed || i != noIndex && i < s.completions
}

func (s *state) observeIndexes() {
	s.completedBefore = parseIndexes(s.status.CompletedIndexes, s.completions)
	var done, dead, live []int
	for _, p := range s.owned {
		switch {
		case workloads.Active(p):
			live = append(live, completionIndex(p))
		case !tracked(p) || !s.valid(p):
		case p.Status.Phase == corev1.PodSucceeded:
			done = append(done, completionIndex(p))
		case s.perIndex && s.failsIndex(p):
			dead = append(dead, completionIndex(p))
		}
	}
	if s.perIndex {
		s.failedBefore = parseIndexes(ptr.Deref(s.status.FailedIndexes, ""), s.completions).without(s.completedBefore)
	}
	// An index of which one pod has succeeded and another one has failed is what the status knows first.
	s.completed = s.completedBefore.union(indexesOf(done...).without(s.failedBefore))
	s.succeeded = s.completed.total()
	if !s.perIndex {
		return
	}
	s.failedIndexes = s.failedBefore.union(indexesOf(dead...).without(s.completed))
	s.delayed = s.delayedPods(s.completed.union(s.failedIndexes).union(indexesOf(live...)))
}

// failsIndex reports whether the failure of the pod makes its index fail.
func (s *state) failsIndex(p *corev1.Pod) bool {
	if !failed(s.Job, p) {
		return false
	}
	match := matchFailurePolicy(s.Job.Spec.PodFailurePolicy, p)
	before, _ := indexFailures(p)
	return match.action == batchv1.PodFailurePolicyActionFailIndex ||
		match.counted() && before >= int(*s.Job.Spec.BackoffLimitPerIndex)
}

// delayedPods returns the last failed pod of each index that needs a new pod. Such a pod keeps its finalizer until
// the new pod exists, which continues the counters in its annotations.
func (s *state) delayedPods(settled indexes) map[int]*corev1.Pod {
	out := map[int]*corev1.Pod{}
	for _, p := range s.owned {
		i := completionIndex(p)
		if !tracked(p) || !s.valid(p) || !failed(s.Job, p) || settled.has(i) {
			continue
		}
		if last := out[i]; last != nil {
			_, a := indexFailures(last)
			_, b := indexFailures(p)
			if cmp.Or(cmp.Compare(a, b), finishTime(last).Compare(finishTime(p))) > 0 {
				continue
			}
		}
		out[i] = p
	}
	return out
}

// updateStatus completes the status and emits it if it differs from the observed one.
func (s *state) updateStatus() {
	s.status.Active = int32(s.activeCount)
	s.status.Ready = new(int32(s.readyCount))
	s.status.Terminating = new(int32(s.terminatingCount))
	if !equality.Semantic.DeepEqual(s.status, s.Job.Status) {
		s.out.Status = &s.status
	}
}
