package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"berth/workloads"
)

// describe writes a decision in one line: writes, status, conditions, events and the wake time.
func describe(d workloads.Decision[batchv1.JobStatus]) string {
	var out []string
	for _, w := range d.Writes {
		pod, _ := w.Object.(*corev1.Pod)
		switch base, _ := w.Base.(*corev1.Pod); {
		case w.Verb == workloads.Create:
			out = append(out, strings.TrimSuffix("create "+pod.Annotations[batchv1.JobCompletionIndexAnnotation], " "))
		case w.Verb == workloads.Delete:
			out = append(out, "delete "+pod.Name)
		case w.VerifyOwner:
			out = append(out, "adopt "+pod.Name)
		case len(pod.OwnerReferences) < len(base.OwnerReferences):
			out = append(out, "disown "+pod.Name)
		case tracked(base):
			out = append(out, "release "+pod.Name)
		default:
			out = append(out, "track "+pod.Name)
		}
	}
	if s := d.Status; s != nil {
		u := s.UncountedTerminatedPods
		out = append(out, fmt.Sprintf("a%d s%d f%d t%d", s.Active, s.Succeeded, s.Failed, *s.Terminating))
		if s.CompletedIndexes != "" {
			out = append(out, "done "+s.CompletedIndexes)
		}
		if s.FailedIndexes != nil && *s.FailedIndexes != "" {
			out = append(out, "dead "+*s.FailedIndexes)
		}
		if len(u.Succeeded)+len(u.Failed) > 0 {
			out = append(out, fmt.Sprintf("uncounted %v%v", u.Succeeded, u.Failed))
		}
		for _, c := range s.Conditions {
			out = append(out, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
		}
	}
	for _, e := range d.Events {
		out = append(out, "event "+e.Reason)
	}
	if !d.Wake.IsZero() {
		out = append(out, "wake "+d.Wake.Sub(testNow).String())
	}
	return strings.Join(out, ", ")
}

// known puts pods into status.uncountedTerminatedPods.
func known(succeeded, failed []types.UID) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: succeeded, Failed: failed}
	}
}

func with(t batchv1.JobConditionType, reason string) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Status.Conditions = append(job.Status.Conditions,
			batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason})
	}
}

func size(parallelism, completions int32) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Spec.Parallelism, job.Spec.Completions = new(parallelism), new(completions)
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	spec := func(edit func(*batchv1.JobSpec)) func(*batchv1.Job) {
		return func(job *batchv1.Job) { edit(&job.Spec) }
	}
	suspend := spec(func(s *batchv1.JobSpec) { s.Suspend = new(true) })
	onlyFailed := spec(func(s *batchv1.JobSpec) { s.PodReplacementPolicy = ptr.To(batchv1.Failed) })
	perIndex := func(limit int32) func(*batchv1.Job) {
		return spec(func(s *batchv1.JobSpec) {
			s.BackoffLimitPerIndex, s.BackoffLimit = new(limit), ptr.To[int32](1<<30)
		})
	}
	policy := func(action batchv1.PodFailurePolicyAction, codes ...int32) func(*batchv1.Job) {
		return spec(func(s *batchv1.JobSpec) {
			s.PodReplacementPolicy = ptr.To(batchv1.Failed)
			s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: action, OnExitCodes: exitsIn(codes...),
			}}}
		})
	}
	restarted := func(n int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: n}} }
	}
	type jobs = []func(*batchv1.Job)
	for name, c := range map[string]struct {
		job  jobs
		pods []*corev1.Pod
		want string
	}{
		"a new job creates its pods": {jobs{size(2, 5)}, nil, "create, create, a2 s0 f0 t0"},
		"no more pods than remaining completions": {jobs{started, size(3, 4), known([]types.UID{"a", "b"}, nil)},
			[]*corev1.Pod{testPod("a", exits(0, 0)), testPod("b", exits(0, 0))},
			"release a, release b, create, create, a2 s0 f0 t0, uncounted [a b][]"},
		"a success becomes known before its finalizer goes": {jobs{started}, []*corev1.Pod{testPod("a", exits(0, 0))},
			"a0 s0 f0 t0, uncounted [a][], SuccessCriteriaMet=True/CompletionsReached"},
		"the finalizer of a known success goes": {
			jobs{started, known([]types.UID{"a"}, nil), with(batchv1.JobSuccessCriteriaMet, "CompletionsReached")},
			[]*corev1.Pod{testPod("a", exits(0, 0))}, "release a"},
		"the counter goes up and the job is complete": {
			jobs{started, known([]types.UID{"a"}, nil), with(batchv1.JobSuccessCriteriaMet, "CompletionsReached")},
			[]*corev1.Pod{testPod("a", exits(0, 0), counted)},
			"a0 s1 f0 t0, SuccessCriteriaMet=True/CompletionsReached, Complete=True/CompletionsReached, " +
				"event Completed"},
		"a job without work is complete at once": {jobs{size(1, 0)}, nil,
			"a0 s0 f0 t0, SuccessCriteriaMet=True/CompletionsReached, Complete=True/CompletionsReached, " +
				"event Completed"},
		"a failed pod is replaced after the back-off": {jobs{started, known(nil, []types.UID{"a"})},
			[]*corev1.Pod{testPod("a", exits(1, 4*time.Second), counted)}, "a0 s0 f1 t0, wake 6s"},
		"the back-off doubles": {jobs{started, size(1, 1)}, []*corev1.Pod{
			testPod("a", exits(1, time.Minute), counted), testPod("b", exits(1, 9*time.Second), counted),
		}, "wake 11s"},
		"a success ends the back-off": {jobs{started, size(1, 3), known([]types.UID{"b"}, nil)}, []*corev1.Pod{
			testPod("a", exits(1, 9*time.Second), counted), testPod("b", exits(0, time.Second), counted),
		}, "create, a1 s1 f0 t0"},
		"the back-off is over": {jobs{started}, []*corev1.Pod{testPod("a", exits(1, 10*time.Second), counted)},
			"create, a1 s0 f0 t0"},
		"the back-off limit is exceeded": {
			jobs{started, size(2, 2), spec(func(s *batchv1.JobSpec) { s.BackoffLimit = ptr.To[int32](0) })},
			[]*corev1.Pod{testPod("a", exits(1, 0)), testPod("b", isReady)},
			"delete b, a0 s0 f0 t1, uncounted [][a b], FailureTarget=True/BackoffLimitExceeded"},
		"a failure that is known counts once": {jobs{started, known(nil, []types.UID{"a"}),
			spec(func(s *batchv1.JobSpec) { s.BackoffLimit = ptr.To[int32](1) })},
			[]*corev1.Pod{testPod("a", exits(1, time.Hour))}, "release a, create, a1 s0 f0 t0, uncounted [][a]"},
		"a failed job waits for its terminating pods": {
			jobs{started, size(2, 2), known(nil, []types.UID{"b"}), with(batchv1.JobFailureTarget,
				"BackoffLimitExceeded")},
			[]*corev1.Pod{testPod("b", deleted, counted)}, "a0 s0 f1 t1, FailureTarget=True/BackoffLimitExceeded"},
		"a failed job": {jobs{started, with(batchv1.JobFailureTarget, "DeadlineExceeded")}, nil,
			"a0 s0 f0 t0, FailureTarget=True/DeadlineExceeded, Failed=True/DeadlineExceeded, event DeadlineExceeded"},
		"restarts of containers use up the back-off limit": {jobs{started, spec(func(s *batchv1.JobSpec) {
			s.BackoffLimit, s.Template.Spec.RestartPolicy = ptr.To[int32](2), corev1.RestartPolicyOnFailure
		})}, []*corev1.Pod{testPod("a", restarted(2))},
			"delete a, a0 s0 f0 t1, uncounted [][a], FailureTarget=True/BackoffLimitExceeded"},
		"the deadline is past": {jobs{started,
			spec(func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](60) })},
			[]*corev1.Pod{testPod("a")}, "delete a, a0 s0 f0 t1, uncounted [][a], FailureTarget=True/DeadlineExceeded"},
		"the deadline comes": {jobs{started,
			spec(func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](61) })},
			[]*corev1.Pod{testPod("a")}, "a1 s0 f0 t0, wake 1s"},
		"a job is suspended": {jobs{started, suspend}, []*corev1.Pod{testPod("a")},
			"release a, delete a, a0 s0 f0 t1, Suspended=True/JobSuspended, event Suspended"},
		"a job is created suspended": {jobs{suspend}, nil, "a0 s0 f0 t0, Suspended=True/JobSuspended, event Suspended"},
		"a job resumes": {jobs{started, with(batchv1.JobSuspended, "JobSuspended")}, nil,
			"create, a1 s0 f0 t0, Suspended=False/JobResumed, event Resumed"},
		"surplus pods that have come less far are deleted": {jobs{started, size(1, 5)}, []*corev1.Pod{
			testPod("a", isReady), testPod("b"), testPod("c", func(p *corev1.Pod) { p.Spec.NodeName = "" }),
		}, "release c, release b, delete c, delete b, a1 s0 f0 t2"},
		"a deleted pod counts as failed and is replaced": {jobs{started}, []*corev1.Pod{testPod("a", deleted)},
			"a0 s0 f0 t1, uncounted [][a], wake 10s"},
		"a deleted pod is replaced only when it has failed": {jobs{started, onlyFailed},
			[]*corev1.Pod{testPod("a", deleted)}, "a0 s0 f0 t1"},
		"a work queue with a success starts no more pods": {
			jobs{started, size(3, 0), spec(func(s *batchv1.JobSpec) { s.Completions = nil })},
			[]*corev1.Pod{testPod("a", exits(0, 0)), testPod("b")}, "a1 s0 f0 t0, uncounted [a][]"},
		"an interrupted deletion is undone": {jobs{started}, []*corev1.Pod{testPod("a", counted)},
			"track a, a1 s0 f0 t0"},
		"another controller manages the job": {
			jobs{spec(func(s *batchv1.JobSpec) { s.ManagedBy = new("example.com/queue") })}, nil, ""},
		"the mode is unknown": {
			jobs{spec(func(s *batchv1.JobSpec) { s.CompletionMode = ptr.To[batchv1.CompletionMode]("Odd") })}, nil,
			"event UnknownCompletionMode"},
		"a finished job only lets its pods go": {jobs{started, with(batchv1.JobComplete, "")},
			[]*corev1.Pod{testPod("a", exits(1, 0)), testPod("b")}, "release a, release b"},
		"a job that is being deleted starts no pods": {
			jobs{started, size(2, 2), func(job *batchv1.Job) { job.DeletionTimestamp = &metav1.Time{Time: testNow} }},
			[]*corev1.Pod{testPod("a")}, "release a, a1 s0 f0 t0"},
		"a pod is adopted": {jobs{started}, []*corev1.Pod{testPod("a", counted,
			func(p *corev1.Pod) { p.OwnerReferences = nil })},
			"adopt a, a1 s0 f0 t0"},
		"a pod that no longer matches is released": {jobs{started},
			[]*corev1.Pod{testPod("a", func(p *corev1.Pod) { p.Labels = nil })}, "disown a, create, a1 s0 f0 t0"},

		"indexes get pods in order": {jobs{started, indexedJob(3)}, []*corev1.Pod{testPod("b", atIndex(1))},
			"create 0, create 2, a3 s0 f0 t0"},
		"a succeeded index is known by its number": {jobs{started, indexedJob(2)},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(0, 0)), testPod("b", atIndex(1))}, "a1 s1 f0 t0, done 0"},
		"the finalizer of a known index goes": {
			jobs{started, indexedJob(2), func(job *batchv1.Job) {
				job.Status.CompletedIndexes,
					job.Status.Succeeded = "0", 1
			}},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(0, 0)), testPod("b", atIndex(1))},
			"release a, a1 s1 f0 t0, done 0"},
		"duplicate and invalid indexes are deleted": {jobs{started, indexedJob(2)}, []*corev1.Pod{
			testPod("a", atIndex(0)), testPod("b", atIndex(0), isReady), testPod("c", atIndex(7)), testPod("d"),
		}, "release d, release c, release a, delete d, delete c, delete a, a1 s0 f0 t3"},
		"an index has its own back-off": {jobs{started, indexedJob(2), perIndex(3)},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(1, 4*time.Second)), testPod("b", atIndex(1))},
			"a1 s0 f0 t0, uncounted [][a], wake 6s"},
		"the failed pod of an index stays until it is replaced": {
			jobs{started, indexedJob(2), perIndex(3), known(nil, []types.UID{"a"})},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(1, time.Minute)), testPod("b", atIndex(1))},
			"create 0, a2 s0 f0 t0, uncounted [][a]"},
		"an index fails": {jobs{started, indexedJob(2), perIndex(0)},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(1, 0)), testPod("b", atIndex(1))},
			"a1 s0 f0 t0, dead 0, uncounted [][a]"},
		"too many indexes fail": {
			jobs{started, indexedJob(2), perIndex(0),
				spec(func(s *batchv1.JobSpec) { s.MaxFailedIndexes = ptr.To[int32](0) })},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(1, 0)), testPod("b", atIndex(1))},
			"delete b, a0 s0 f0 t1, dead 0, uncounted [][a b], FailureTarget=True/MaxFailedIndexesExceeded"},
		"all indexes have ended and one has failed": {jobs{started, indexedJob(2), perIndex(0)},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(1, 0)), testPod("b", atIndex(1), exits(0, 0))},
			"a0 s1 f0 t0, done 1, dead 0, uncounted [][a], FailureTarget=True/FailedIndexes"},
		"the success policy is met": {jobs{started, indexedJob(3), spec(func(s *batchv1.JobSpec) {
			s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("1")}}}
		})}, []*corev1.Pod{testPod("a", atIndex(0)), testPod("b", atIndex(1), exits(0, 0))},
			"release a, delete a, a0 s1 f0 t1, done 1, SuccessCriteriaMet=True/SuccessPolicy"},

		"a failure is ignored": {jobs{started, policy(batchv1.PodFailurePolicyActionIgnore, 3)},
			[]*corev1.Pod{testPod("a", exits(3, time.Minute))}, "release a, create, a1 s0 f0 t0"},
		"a failure fails the job": {jobs{started, policy(batchv1.PodFailurePolicyActionFailJob, 3)},
			[]*corev1.Pod{testPod("a", exits(3, 0))},
			"a0 s0 f0 t0, uncounted [][a], FailureTarget=True/PodFailurePolicy"},
		"a failure fails the index": {jobs{started, indexedJob(2), perIndex(5),
			policy(batchv1.PodFailurePolicyActionFailIndex, 3)},
			[]*corev1.Pod{testPod("a", atIndex(0), exits(3, 0)), testPod("b", atIndex(1))},
			"a1 s0 f0 t0, dead 0, uncounted [][a]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := testJob(c.job...)
			before := job.DeepCopy()
			got := describe(Decide(Input{Now: testNow, Job: job, Pods: c.pods}))
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			slices.Reverse(c.pods)
			if again := describe(Decide(Input{Now: testNow, Job: job, Pods: c.pods})); again != got {
				t.Errorf("got %s with the pods in reverse order", again)
			}
			if before.String() != job.String() {
				t.Error("Decide modified the job")
			}
		})
	}
}

// TestWriteErrorKeepsCounting checks that rejected writes of pods delay neither the counting nor the end of a Job.
func TestWriteErrorKeepsCounting(t *testing.T) {
	t.Parallel()
	deadline := func(seconds int64) func(*batchv1.Job) {
		return func(job *batchv1.Job) { job.Spec.ActiveDeadlineSeconds = &seconds }
	}
	fails := func(job *batchv1.Job) { job.Spec.BackoffLimit = ptr.To[int32](0) }
	suspend := func(job *batchv1.Job) { job.Spec.Suspend = new(true) }
	type jobs = []func(*batchv1.Job)
	for name, c := range map[string]struct {
		job  jobs
		pods []*corev1.Pod
		want string
	}{
		"a finished pod becomes known": {jobs{started, size(2, 3)},
			[]*corev1.Pod{testPod("a", isReady), testPod("b", exits(0, 0))}, "a1 s0 f0 t0, uncounted [b][]"},
		"a known pod is counted": {jobs{started, size(2, 3), known([]types.UID{"b"}, nil)},
			[]*corev1.Pod{testPod("a", isReady), testPod("b", exits(0, 0), counted)}, "a1 s1 f0 t0"},
		"a succeeded index is known by its number": {jobs{started, indexedJob(3)},
			[]*corev1.Pod{testPod("a", atIndex(1), exits(0, 0))}, "a0 s1 f0 t0, done 1"},
		"the deadline is past": {jobs{started, size(2, 3), deadline(60)}, []*corev1.Pod{testPod("a", exits(0, 0))},
			"a0 s0 f0 t0, uncounted [a][], FailureTarget=True/DeadlineExceeded"},
		"an active pod of a failed job counts when it is deleted": {jobs{started, size(2, 2), fails},
			[]*corev1.Pod{testPod("a", exits(1, 0)), testPod("b")},
			"a1 s0 f0 t0, uncounted [][a], FailureTarget=True/BackoffLimitExceeded"},
		"the next decision ends a failed job": {jobs{started, with(batchv1.JobFailureTarget, "DeadlineExceeded")}, nil,
			"a0 s0 f0 t0, FailureTarget=True/DeadlineExceeded"},
		"a job is suspended": {jobs{started, suspend}, []*corev1.Pod{testPod("a")},
			"a1 s0 f0 t0, Suspended=True/JobSuspended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := testJob(c.job...)
			job.Status.Terminating = ptr.To[int32](7) // so that the status always differs
			d := Decide(Input{Now: testNow, Job: job, Pods: c.pods, WriteError: &workloads.WriteError{}})
			if got := describe(workloads.Decision[batchv1.JobStatus]{Status: d.Status}); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if start := d.Status.StartTime; start == nil && !*job.Spec.Suspend {
				t.Error("no start time")
			}
		})
	}
	d := Decide(Input{Now: testNow, Job: testJob(deadline(60)), WriteError: &workloads.WriteError{}})
	if start := d.Status.StartTime; start == nil || !start.Time.Equal(testNow) {
		t.Errorf("start time %v of a new job", start)
	}
}

func TestMessagesAreUpstreams(t *testing.T) {
	t.Parallel()
	job := testJob(started, func(job *batchv1.Job) {
		job.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			{Action: batchv1.PodFailurePolicyActionFailJob,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
					{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
			{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: exitsIn(3)},
		}}
	})
	for want, pod := range map[string]*corev1.Pod{
		"Container c for pod ns/a failed with exit code 3 matching FailJob rule at index 1": testPod("a", exits(3, 0)),
		"Pod ns/a has condition DisruptionTarget matching FailJob rule at index 0": testPod("a", exits(3, 0),
			func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget,
					Status: corev1.ConditionTrue}}
			}),
	} {
		d := Decide(Input{Now: testNow, Job: job, Pods: []*corev1.Pod{pod}})
		if c := condition(d.Status.Conditions, batchv1.JobFailureTarget); c == nil || c.Message != want {
			t.Errorf("condition %+v, want message %q", c, want)
		}
	}
}
