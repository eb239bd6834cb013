package validation

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// edits are changes of a Job.
type edits []func(*batchv1.Job)

func withSpec(edit func(*batchv1.JobSpec)) func(*batchv1.Job) {
	return func(j *batchv1.Job) { edit(&j.Spec) }
}

func withStatus(edit func(*batchv1.JobStatus)) func(*batchv1.Job) {
	return func(j *batchv1.Job) { edit(&j.Status) }
}

// are sets conditions to True.
func are(list ...batchv1.JobConditionType) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		for _, t := range list {
			j.Status.Conditions = append(j.Status.Conditions,
				batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue})
		}
	}
}

var jobStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// after returns the time so many seconds after the start.
func after(seconds int) *metav1.Time {
	return &metav1.Time{Time: jobStart.Add(time.Duration(seconds) * time.Second)}
}

var (
	started   = withStatus(func(s *batchv1.JobStatus) { s.StartTime = after(0) })
	ended     = withStatus(func(s *batchv1.JobStatus) { s.CompletionTime = after(9) })
	complete  = are(batchv1.JobSuccessCriteriaMet, batchv1.JobComplete)
	failed    = are(batchv1.JobFailureTarget, batchv1.JobFailed)
	suspended = withSpec(func(s *batchv1.JobSpec) { s.Suspend = new(true) })
	indexed   = withSpec(func(s *batchv1.JobSpec) {
		s.CompletionMode, s.Completions = ptr.To(batchv1.IndexedCompletion), new(int32(5))
		s.BackoffLimitPerIndex = new(int32(1))
	})
	uncountedPods = withStatus(func(s *batchv1.JobStatus) {
		s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Failed: []types.UID{"a"}}
	})
)

func indexesAre(completed string, dead *string) func(*batchv1.Job) {
	return withStatus(func(s *batchv1.JobStatus) { s.CompletedIndexes, s.FailedIndexes = completed, dead })
}

// TestJobStatus checks which updates of the status of a Job are valid. An update changes the Job of old; both have the
// specification of spec.
func TestJobStatus(t *testing.T) {
	t.Parallel()
	const noValue = "status.conditions: Invalid value: "
	for name, c := range map[string]struct {
		spec, old, update edits
		want              []string
	}{
		"running":  {nil, nil, edits{started, func(j *batchv1.Job) { j.Status.Active = 2 }}, nil},
		"complete": {nil, edits{started}, edits{complete, ended}, nil},
		"failed":   {nil, edits{started}, edits{failed}, nil},
		"complete and suspended without work": {
			edits{suspended, withSpec(func(s *batchv1.JobSpec) { s.Completions = new(int32(0)) })},
			nil, edits{complete, ended}, nil,
		},
		"negative counts": {nil, nil, edits{withStatus(func(s *batchv1.JobStatus) {
			s.Active, s.Succeeded, s.Failed, s.Ready, s.Terminating = -1, -2, -3, new(int32(-4)), new(int32(-5))
		})}, []string{
			"status.active: Invalid value: -1: must be greater than or equal to 0",
			"status.failed: Invalid value: -3: cannot decrease the failed counter",
			"status.failed: Invalid value: -3: must be greater than or equal to 0",
			"status.ready: Invalid value: -4: must be greater than or equal to 0",
			"status.succeeded: Invalid value: -2: cannot decrease the succeeded counter",
			"status.succeeded: Invalid value: -2: must be greater than or equal to 0",
			"status.terminating: Invalid value: -5: must be greater than or equal to 0",
		}},
		"uncounted pods": {nil, nil, edits{withStatus(func(s *batchv1.JobStatus) {
			s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{
				Succeeded: []types.UID{"a", "", "a"}, Failed: []types.UID{"b", "a", ""},
			}
		})}, []string{
			`status.uncountedTerminatedPods.failed[1]: Duplicate value: "a"`,
			`status.uncountedTerminatedPods.failed[2]: Invalid value: "": must not be empty`,
			`status.uncountedTerminatedPods.succeeded[1]: Invalid value: "": must not be empty`,
			`status.uncountedTerminatedPods.succeeded[2]: Duplicate value: "a"`,
		}},
		"complete and failed": {nil, edits{started}, edits{complete, failed, ended}, []string{
			"status.conditions: Invalid value: cannot set Complete=True and Failed=true conditions",
			"status.conditions: Invalid value: cannot set Complete=True and FailureTarget=true conditions",
			"status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and Failed=true conditions",
			"status.conditions: Invalid value: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
		}},
		"complete without criteria": {nil, edits{started}, edits{are(batchv1.JobComplete), ended}, []string{
			noValue + "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
		}},
		"complete without criteria before": {nil, edits{started, are(batchv1.JobComplete), ended}, edits{withStatus(
			func(s *batchv1.JobStatus) { s.Succeeded = 1 },
		)}, nil},
		"criteria of a complete job": {nil, edits{started, are(batchv1.JobComplete), ended},
			edits{are(batchv1.JobSuccessCriteriaMet)}, []string{
				noValue + "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
			}},
		"complete without the success policy": {edits{indexed, withSpec(func(s *batchv1.JobSpec) {
			rule := batchv1.SuccessPolicyRule{SucceededCount: new(int32(1))}
			s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{rule}}
		})}, edits{started}, edits{are(batchv1.JobComplete), ended}, []string{
			noValue + "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
			noValue + "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
		}},
		"failed without target": {nil, edits{started}, edits{are(batchv1.JobFailed)}, []string{
			noValue + "cannot set Failed=True condition without the FailureTarget=true condition",
		}},
		"conditions removed": {nil, edits{started, failed, are(batchv1.JobComplete)}, edits{withStatus(
			func(s *batchv1.JobStatus) { s.Conditions = nil },
		)}, []string{
			noValue + "cannot disable the terminal Complete=True condition",
			noValue + "cannot disable the terminal Failed=True condition",
			noValue + "cannot disable the terminal FailureTarget=True condition",
		}},
		"criteria removed": {nil, edits{are(batchv1.JobSuccessCriteriaMet)}, edits{withStatus(
			func(s *batchv1.JobStatus) { s.Conditions[0].Status = corev1.ConditionFalse },
		)}, []string{noValue + "cannot disable the SuccessCriteriaMet=True condition"}},
		"completion time of a running job": {nil, edits{started}, edits{ended}, []string{
			`status.completionTime: Invalid value: "2026-01-01T00:00:09Z": cannot set completionTime when there is ` +
				"no Complete=True condition",
		}},
		"no completion time": {nil, edits{started}, edits{complete}, []string{
			"status.completionTime: Required value: completionTime is required for Complete jobs",
		}},
		"no completion time before": {nil, edits{started, complete}, edits{withStatus(func(s *batchv1.JobStatus) {
			s.Succeeded = 1
		})}, nil},
		"completion before the start": {nil, edits{started}, edits{complete, withStatus(func(s *batchv1.JobStatus) {
			s.CompletionTime = after(-1)
		})}, []string{`status.completionTime: Invalid value: "2025-12-31T23:59:59Z": must be equal to or after ` +
			"`startTime`"}},
		"completion time changed": {nil, edits{started, complete, ended}, edits{withStatus(func(s *batchv1.JobStatus) {
			s.CompletionTime = after(10)
		})}, []string{`status.completionTime: Invalid value: "2026-01-01T00:00:10Z": field is immutable`}},
		"completion time removed": {nil, edits{started, complete, ended}, edits{withStatus(func(s *batchv1.JobStatus) {
			s.CompletionTime = nil
		})}, []string{"status.completionTime: Required value: completionTime is required for Complete jobs"}},
		"start time changed": {nil, edits{started}, edits{withStatus(func(s *batchv1.JobStatus) {
			s.StartTime = after(1)
		})}, []string{`status.startTime: Invalid value: "2026-01-01T00:00:01Z": field is immutable for unsuspended ` +
			"job once set"}},
		"start time of a suspended job removed": {edits{suspended}, edits{started}, edits{withStatus(
			func(s *batchv1.JobStatus) { s.StartTime = nil },
		)}, nil},
		"start time of a resumed job": {nil, edits{started, are(batchv1.JobSuspended)}, edits{withStatus(
			func(s *batchv1.JobStatus) {
				s.StartTime, s.Conditions[0].Status = after(1), corev1.ConditionFalse
			},
		)}, nil},
		"finished without a start time": {nil, nil, edits{failed}, []string{
			"status.startTime: Required value: startTime is required for finished job",
		}},
		"finished without a start time before": {nil, edits{failed}, edits{withStatus(func(s *batchv1.JobStatus) {
			s.Failed = 1
		})}, nil},
		"finished with pods": {nil, edits{started}, edits{failed, uncountedPods, withStatus(
			func(s *batchv1.JobStatus) { s.Active, s.Terminating = 1, new(int32(2)) },
		)}, []string{
			"status.active: Invalid value: 1: active>0 is invalid for finished job",
			"status.terminating: Invalid value: 2: terminating>0 is invalid for finished job",
			`status.uncountedTerminatedPods: Invalid value: {"failed":["a"]}: must be empty for finished job`,
		}},
		"finished with pods before": {nil, edits{started, failed, uncountedPods, withStatus(
			func(s *batchv1.JobStatus) { s.Active, s.Terminating = 1, new(int32(2)) },
		)}, edits{withStatus(func(s *batchv1.JobStatus) { s.Failed = 1 })}, nil},
		"pods of a finished job": {nil, edits{started, failed}, edits{uncountedPods, withStatus(
			func(s *batchv1.JobStatus) { s.Active, s.Terminating = 1, new(int32(2)) },
		)}, []string{
			"status.active: Invalid value: 1: active>0 is invalid for finished job",
			"status.terminating: Invalid value: 2: terminating>0 is invalid for finished job",
			`status.uncountedTerminatedPods: Invalid value: {"failed":["a"]}: must be empty for finished job`,
		}},
		"more ready pods than active": {nil, edits{started}, edits{withStatus(func(s *batchv1.JobStatus) {
			s.Active, s.Ready = 1, new(int32(2))
		})}, []string{"status.ready: Invalid value: 2: cannot set more ready pods than active"}},
		"fewer succeeded pods": {nil, edits{withStatus(func(s *batchv1.JobStatus) { s.Succeeded = 3 })},
			edits{withStatus(func(s *batchv1.JobStatus) { s.Succeeded = 2 })},
			[]string{"status.succeeded: Invalid value: 2: cannot decrease the succeeded counter"}},
		"fewer completions": {edits{indexed, withSpec(func(s *batchv1.JobSpec) { s.Parallelism = new(int32(5)) })},
			edits{withStatus(func(s *batchv1.JobStatus) { s.Succeeded = 3 })},
			edits{withStatus(func(s *batchv1.JobStatus) { s.Succeeded = 2 })}, nil},
		"indexes":         {edits{indexed}, nil, edits{indexesAre("0,2-3", new("1,4"))}, nil},
		"no more indexes": {edits{indexed}, edits{indexesAre("0-9", new("3,x"))}, edits{started}, nil},
		"invalid indexes": {edits{indexed}, nil, edits{indexesAre("2,1", new("3-9"))}, []string{
			`status.completedIndexes: Invalid value: "2,1": error parsing completedIndexes: non-increasing order, ` +
				"previous: 2, current: 1",
			`status.failedIndexes: Invalid value: "3-9": error parsing failedIndexes: too large index: "9"`,
		}},
		"completed and failed indexes": {edits{indexed}, nil, edits{indexesAre("x,0,2-4", new("1,3"))}, []string{
			`status.completedIndexes: Invalid value: "x,0,2-4": error parsing completedIndexes: cannot convert ` +
				`string to integer for index: "x"`,
			`status.failedIndexes: Invalid value: "1,3": failedIndexes and completedIndexes overlap at index: 3`,
		}},
		"indexes of a job without": {nil, nil, edits{indexesAre("0", new(""))}, []string{
			`status.completedIndexes: Invalid value: "0": cannot set non-empty completedIndexes when non-indexed ` +
				"completion mode",
			`status.failedIndexes: Invalid value: "": cannot set non-null failedIndexes when backoffLimitPerIndex is ` +
				"null",
		}},
	} {
		old := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "j", UID: "u", ResourceVersion: "1"}}
		old.Spec.Completions, old.Spec.Parallelism = new(int32(3)), new(int32(2))
		for _, edit := range slices.Concat(c.spec, c.old) {
			edit(old)
		}
		next := old.DeepCopy()
		for _, edit := range c.update {
			edit(next)
		}
		r, _ := RulesFor(schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"})
		var got []string
		for _, err := range r.ValidateStatus(next, old) {
			got = append(got, err.Error())
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\ngot\n\t%s\nwant\n\t%s", name, strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
		}
	}
}
