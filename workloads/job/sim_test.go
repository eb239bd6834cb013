package job

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

// TestSim runs random Jobs in a model world: pods finish, fail and are deleted, the Job is edited, observations are
// late, writes fail, a quota rejects all pods for a while, and the controller is killed between writes. The invariants
// of the package comment hold.
func TestSim(t *testing.T) {
	t.Parallel()
	seeds := 150
	if testing.Short() {
		seeds = 60
	}
	workloadstest.RunSeeds(t, seeds, func(t *testing.T, rng *rand.Rand) {
		t.Helper()
		w := newWorld(t, rng)
		if rng.IntN(4) == 0 {
			w.starve()
		}
		for range 150 {
			w.step()
		}
		w.settle()
	})
}

// world is the model world. It records what really happened to each pod.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	server   *workloadstest.Server
	executor *workloadstest.Executor
	calm     bool // no failures any more
	full     bool // a quota rejects all pods

	counted map[types.UID]string // the list of the status in which the pod was
	pods    map[types.UID]*history
	done    map[int]bool // indexes that have succeeded

	// backoff and nextBackoff are what the controller keeps in memory, until it is killed.
	backoff, nextBackoff *Backoff
	// lastFailure is when the last pod failed that was counted as failed since the controller was killed. Zero: none
	// did. lastSuccess is when the last pod succeeded, counted or not.
	lastFailure, lastSuccess time.Time
}

// history is what happened to one pod.
type history struct {
	index            int
	phase            corev1.PodPhase // the terminal phase that it reached with the finalizer
	ignored, deleted bool
	endedAt          time.Time // when it was deleted or finished, whichever came first
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	t.Helper()
	w := &world{t: t, rng: rng, counted: map[types.UID]string{}, pods: map[types.UID]*history{}, done: map[int]bool{}}
	w.server = workloadstest.NewServer(rng, testNow)
	w.server.OnChange = w.observe
	w.server.Reject = func(write workloads.Write) error {
		if w.full && write.Verb == workloads.Create {
			return apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("exceeded quota"))
		}
		if !w.calm && rng.IntN(30) == 0 {
			return apierrors.NewInternalError(apierrors.NewBadRequest("rejected by the test"))
		}
		return nil
	}
	if _, err := w.server.Create(randomJob(rng)); err != nil {
		t.Fatal(err)
	}
	w.executor = workloadstest.NewExecutor(w.server, rng)
	w.executor.Kill = func() bool {
		killed := !w.calm && rng.IntN(25) == 0
		if killed {
			w.backoff, w.nextBackoff, w.lastFailure = nil, nil, time.Time{}
		}
		return killed
	}
	return w
}

func randomJob(rng *rand.Rand) *batchv1.Job {
	job := testJob()
	spec := &job.Spec
	spec.Parallelism = new(rng.Int32N(4) + 1)
	spec.Completions = new(rng.Int32N(6))
	spec.BackoffLimit = new(rng.Int32N(12))
	spec.Suspend = new(rng.IntN(6) == 0)
	if rng.IntN(3) == 0 {
		spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
	}
	switch {
	case rng.IntN(2) == 0:
		spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
		if rng.IntN(2) == 0 {
			spec.BackoffLimitPerIndex = new(rng.Int32N(3))
			spec.BackoffLimit = ptr.To[int32](1 << 30)
			if rng.IntN(3) == 0 {
				spec.MaxFailedIndexes = new(rng.Int32N(3))
			}
		}
		if rng.IntN(3) == 0 {
			spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{
				SucceededCount: new(rng.Int32N(3) + 1),
			}}}
		}
	case rng.IntN(4) == 0:
		spec.Completions = nil
	}
	if rng.IntN(3) == 0 {
		spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
		spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			{Action: batchv1.PodFailurePolicyActionIgnore, OnExitCodes: exitsIn(2)},
			{Action: batchv1.PodFailurePolicyActionCount, OnExitCodes: exitsIn(1)},
		}}
		if rng.IntN(2) == 0 {
			action := batchv1.PodFailurePolicyActionFailJob
			if spec.BackoffLimitPerIndex != nil {
				action = batchv1.PodFailurePolicyActionFailIndex
			}
			spec.PodFailurePolicy.Rules = append(spec.PodFailurePolicy.Rules,
				batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: exitsIn(3)})
		}
	}
	if rng.IntN(6) == 0 {
		spec.ActiveDeadlineSeconds = new(rng.Int64N(200) + 1)
	}
	return job
}

func exitsIn(codes ...int32) *batchv1.PodFailurePolicyOnExitCodesRequirement {
	return &batchv1.PodFailurePolicyOnExitCodesRequirement{
		Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: codes,
	}
}

func (w *world) job() *batchv1.Job {
	job, found := workloadstest.Get[*batchv1.Job](w.server, "ns", "j")
	if !found {
		w.t.Fatal("the job is gone")
	}
	return job
}

func (w *world) sync() time.Time {
	wake, err := workloadstest.Sync(w.executor, "ns", "j",
		func(job *batchv1.Job, failed *workloads.WriteError) workloads.Decision[batchv1.JobStatus] {
			in := Input{Now: w.server.Now, Job: job, WriteError: failed, Backoff: w.backoff,
				Pods: workloadstest.ObservedList[*corev1.Pod](w.executor.View)}
			out := Decide(in)
			w.nextBackoff = new(NextBackoff(in))
			w.check(job, out)
			return out
		})
	if err != nil && w.calm && !w.full {
		w.t.Fatalf("sync without failures: %v", err)
	}
	return wake
}

func (w *world) step() {
	switch n := w.rng.IntN(20); {
	case n < 8:
		w.sync()
	case n < 11:
		w.executor.View.Advance(w.rng)
	case n < 13:
		w.server.Now = w.server.Now.Add(time.Duration(w.rng.IntN(20)) * time.Second)
	case n == 13:
		w.edit()
	case n == 14:
		w.full = w.rng.IntN(3) == 0
	default:
		if pods := workloadstest.List[*corev1.Pod](w.server); len(pods) > 0 {
			w.act(pods[w.rng.IntN(len(pods))])
		}
	}
}

func (w *world) edit() {
	must(w.t, workloadstest.Edit(w.server, "ns", "j", func(job *batchv1.Job) {
		if w.rng.IntN(2) == 0 {
			job.Spec.Suspend = new(!*job.Spec.Suspend)
		} else {
			job.Spec.Parallelism = new(w.rng.Int32N(5))
		}
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// act does something to a pod that a scheduler, a node or a user does.
func (w *world) act(p *corev1.Pod) {
	switch n := w.rng.IntN(20); {
	case workloads.Terminated(p):
		if p.DeletionTimestamp != nil {
			w.server.FinishPod(p.Namespace, p.Name)
		}
	case p.DeletionTimestamp != nil:
		w.finish(p, w.rng.IntN(3) == 0)
		w.server.FinishPod(p.Namespace, p.Name)
	case n == 0:
		must(w.t, w.server.Delete(p))
	case p.Spec.NodeName == "":
		must(w.t, workloadstest.Edit(w.server, p.Namespace, p.Name, func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase = "node", corev1.PodRunning
		}))
	case n < 4:
		must(w.t, workloadstest.Edit(w.server, p.Namespace, p.Name, func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.server.Now)}}
		}))
	default:
		w.finish(p, w.rng.IntN(10) < 6)
	}
}

// finish ends the containers of a pod.
func (w *world) finish(p *corev1.Pod, success bool) {
	must(w.t, workloadstest.Edit(w.server, p.Namespace, p.Name, func(p *corev1.Pod) {
		var code int32
		p.Status.Phase = corev1.PodSucceeded
		if !success {
			code, p.Status.Phase = w.rng.Int32N(3)+1, corev1.PodFailed
		}
		p.Status.Conditions = nil
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(w.server.Now)},
		}}}
	}))
}

// starve lets a quota reject all pods, without other failures: finished pods are still counted, and the deadline still
// ends the Job.
func (w *world) starve() {
	w.calm, w.full = true, false
	must(w.t, workloadstest.Edit(w.server, "ns", "j", func(job *batchv1.Job) { job.Spec.Suspend = new(false) }))
	if w.rng.IntN(2) == 0 {
		w.executor.View.CatchUp()
		w.sync() // creates pods
	}
	w.full = true
	rounds := func() {
		for range 10 {
			for _, p := range workloadstest.List[*corev1.Pod](w.server) {
				if w.rng.IntN(2) == 0 {
					w.act(p)
				}
			}
			w.executor.View.CatchUp()
			w.sync()
		}
		for range 3 {
			w.executor.View.CatchUp()
			w.sync()
		}
	}
	rounds()
	w.checkCounted()
	if seconds := w.job().Spec.ActiveDeadlineSeconds; seconds != nil {
		w.server.Now = w.server.Now.Add(time.Duration(*seconds+1) * time.Second)
		for range 10 {
			rounds()
		}
		if _, finished := Finished(w.job()); !finished {
			w.t.Errorf("J8: the deadline has not ended the job: %+v", w.job().Status)
		}
	}
	w.calm, w.full = false, false
}

// checkCounted checks that the status knows each finished pod.
func (w *world) checkCounted() {
	st := w.job().Status
	completed := parseIndexes(st.CompletedIndexes, 100)
	if st.StartTime == nil || condition(st.Conditions, batchv1.JobSuccessCriteriaMet) != nil {
		if st.StartTime == nil {
			w.t.Error("J8: no start time")
		}
		return
	}
	for uid, h := range w.pods {
		isKnown := w.counted[uid] != "" || h.ignored && h.phase == corev1.PodFailed ||
			completed.has(h.index) || h.phase == corev1.PodSucceeded && ended(&st).has(h.index)
		if h.phase != "" && !isKnown {
			w.t.Errorf("J8: pod %s (%s, index %d) not counted", uid, h.phase, h.index)
		}
	}
}

// settle lets the Job end without further failures.
func (w *world) settle() {
	w.calm, w.full = true, false
	must(w.t, workloadstest.Edit(w.server, "ns", "j", func(job *batchv1.Job) {
		job.Spec.Suspend, job.Spec.Parallelism = new(false), new(max(1, *job.Spec.Parallelism))
	}))
	for range 200 {
		w.executor.View.CatchUp()
		wake := w.sync()
		for _, p := range workloadstest.List[*corev1.Pod](w.server) {
			switch {
			case p.DeletionTimestamp != nil:
				if !workloads.Terminated(p) {
					w.finish(p, false)
				}
				w.server.FinishPod(p.Namespace, p.Name)
			case !workloads.Terminated(p) && w.rng.IntN(2) == 0:
				w.finish(p, true)
			}
		}
		if _, finished := Finished(w.job()); finished {
			w.checkEnd()
			return
		}
		if wake.After(w.server.Now) && w.rng.IntN(3) == 0 {
			w.server.Now = wake
		}
	}
	w.t.Fatalf("the job does not end: %+v", w.job())
}

// observe records what happens and checks it.
func (w *world) observe(old, current workloads.Object) {
	switch o := cmpObject(old, current).(type) {
	case *corev1.Pod:
		before, _ := old.(*corev1.Pod)
		after, _ := current.(*corev1.Pod)
		w.observePod(o.UID, before, after)
	case *batchv1.Job:
		if before, ok := old.(*batchv1.Job); ok {
			w.observeJob(before, o)
		}
	}
}

func cmpObject(old, current workloads.Object) workloads.Object {
	if current != nil {
		return current
	}
	return old
}

func (w *world) observePod(uid types.UID, before, after *corev1.Pod) {
	h := w.pods[uid]
	if before == nil {
		h = &history{index: completionIndex(after)}
		w.pods[uid] = h
		if h.index != noIndex && w.done[h.index] {
			w.t.Errorf("J2: index %d has succeeded and runs again", h.index)
		}
		return
	}
	if after != nil && tracked(after) && h.phase == "" && workloads.Terminated(after) {
		h.phase = after.Status.Phase
		if h.phase == corev1.PodSucceeded {
			w.lastSuccess = w.server.Now
		}
		h.ignored = !matchFailurePolicy(w.job().Spec.PodFailurePolicy, after).counted()
		// A deleted pod counts as failed and is replaced, also if it succeeds in the end.
		replaced := h.deleted && !replacesOnlyFailed(w.job()) || w.counted[uid] != ""
		if h.phase == corev1.PodSucceeded && h.index != noIndex && !replaced {
			w.done[h.index] = true
		}
	}
	h.deleted = h.deleted || after != nil && after.DeletionTimestamp != nil
	if h.endedAt.IsZero() && (h.deleted || h.phase != "") {
		h.endedAt = w.server.Now
	}
	if tracked(before) && (after == nil || !tracked(after)) && workloads.Terminated(before) {
		w.checkKnown(before, h)
	}
}

// checkKnown checks that the persisted status knows a finished pod that loses its finalizer.
func (w *world) checkKnown(p *corev1.Pod, h *history) {
	st := w.job().Status
	known := w.counted[p.UID] != "" || h.ignored && h.phase == corev1.PodFailed ||
		condition(st.Conditions, batchv1.JobSuccessCriteriaMet) != nil
	if h.index != noIndex && h.phase == corev1.PodSucceeded {
		known = known || ended(&st).has(h.index)
	}
	if !known {
		w.t.Errorf("J4: finalizer of pod %s (%s) removed before the status knows it", p.Name, h.phase)
	}
}

// ended returns the indexes that have succeeded or failed.
func ended(st *batchv1.JobStatus) indexes {
	return parseIndexes(st.CompletedIndexes, 100).union(parseIndexes(ptr.Deref(st.FailedIndexes, ""), 100))
}

func (w *world) observeJob(before, after *batchv1.Job) {
	for list, uids := range map[string][]types.UID{
		"succeeded": uncounted(after).Succeeded, "failed": uncounted(after).Failed,
	} {
		for _, uid := range uids {
			if old := uncounted(before); slices.Contains(old.Succeeded, uid) || slices.Contains(old.Failed, uid) {
				continue
			}
			if w.counted[uid] != "" {
				w.t.Errorf("J3: pod %s counted as %s and as %s", uid, w.counted[uid], list)
			}
			w.counted[uid] = list
			if list == "failed" && w.pods[uid].endedAt.After(w.lastFailure) && w.nextBackoff != nil {
				w.lastFailure = w.pods[uid].endedAt
			}
		}
	}
	if !equality.Semantic.DeepEqual(before.Status, after.Status) && w.nextBackoff != nil {
		w.backoff = w.nextBackoff
	}
	_, was := Finished(before)
	if _, is := Finished(after); is && !was {
		for _, p := range workloadstest.List[*corev1.Pod](w.server) {
			if !workloads.Terminated(p) || tracked(p) {
				w.t.Errorf("J5: the job finished before pod %s", p.Name)
			}
		}
	} else if was && (!is || len(after.Status.Conditions) != len(before.Status.Conditions) ||
		after.Status.Failed != before.Status.Failed || after.Status.Succeeded != before.Status.Succeeded) {
		w.t.Errorf("J6: the status of a finished job changed: %+v", after.Status)
	}
}

func uncounted(job *batchv1.Job) batchv1.UncountedTerminatedPods {
	return ptr.Deref(job.Status.UncountedTerminatedPods, batchv1.UncountedTerminatedPods{})
}

// check checks a decision against what has really happened.
func (w *world) check(job *batchv1.Job, d workloads.Decision[batchv1.JobStatus]) {
	active, creates := 0, 0
	live := map[int]bool{}
	for _, p := range workloadstest.List[*corev1.Pod](w.server) {
		if workloads.Active(p) {
			active++
			live[completionIndex(p)] = true
		}
	}
	_, finished := Finished(job)
	for _, write := range d.Writes {
		if finished && write.Verb != workloads.Patch {
			w.t.Errorf("J6: a finished job writes %v", write)
		}
		if write.Verb != workloads.Create {
			continue
		}
		creates++
		pod, _ := write.Object.(*corev1.Pod)
		if i := completionIndex(pod); i != noIndex && live[i] {
			w.t.Errorf("J2: index %d has an active pod", i)
		}
	}
	if limit := int(*job.Spec.Parallelism); creates > 0 && active+creates > limit {
		w.t.Errorf("J1: %d active pods and %d new ones, parallelism %d", active, creates, limit)
	}
	if job.Spec.BackoffLimitPerIndex == nil && creates > 0 && w.lastFailure.After(w.lastSuccess) &&
		w.server.Now.Before(w.lastFailure.Add(minBackoff-time.Second)) {
		w.t.Errorf("J9: a pod is created %s after a failure", w.server.Now.Sub(w.lastFailure))
	}
	if *job.Spec.Suspend && creates > 0 {
		w.t.Error("J1: a suspended job creates pods")
	}
}

// checkEnd checks the counters of a finished Job against what has really happened.
func (w *world) checkEnd() {
	st := w.job().Status
	numbers := map[string]int{}
	for _, list := range w.counted {
		numbers[list]++
	}
	if int(st.Failed) != numbers["failed"] {
		w.t.Errorf("J3: failed %d, counted %d", st.Failed, numbers["failed"])
	}
	if indexed(w.job()) {
		if int(st.Succeeded) != parseIndexes(st.CompletedIndexes, 100).total() {
			w.t.Errorf("J3: succeeded %d, completed indexes %q", st.Succeeded, st.CompletedIndexes)
		}
	} else if int(st.Succeeded) != numbers["succeeded"] {
		w.t.Errorf("J3: succeeded %d, counted %d", st.Succeeded, numbers["succeeded"])
	}
	met := condition(st.Conditions, batchv1.JobSuccessCriteriaMet) != nil
	known := ended(&st)
	for uid, h := range w.pods {
		list := w.counted[uid]
		isIndex := h.index != noIndex
		switch {
		case list == "succeeded" && h.phase != corev1.PodSucceeded:
			w.t.Errorf("J3: pod %s (%q) counted as succeeded", uid, h.phase)
		case list == "failed" && h.phase != corev1.PodFailed && !h.deleted:
			w.t.Errorf("J3: pod %s (%q) counted as failed", uid, h.phase)
		case h.phase == corev1.PodSucceeded && list == "" && !met && !(isIndex && known.has(h.index)),
			h.phase == corev1.PodFailed && list == "" && !h.ignored && !met:
			w.t.Errorf("J3: pod %s (%s, index %s) not counted", uid, h.phase, strconv.Itoa(h.index))
		}
	}
}
