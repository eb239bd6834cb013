package job

import (
	"maps"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/workloads"
)

func TestProgressOf(t *testing.T) {
	t.Parallel()
	failing := func(name string, code int32) *corev1.Pod {
		p := testPod(name)
		p.UID = types.UID(name)
		p.Finalizers = []string{batchv1.JobTrackingFinalizer}
		p.Status.Phase = corev1.PodFailed
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}}
		return p
	}
	policy := func(j *batchv1.Job) {
		rule := func(action batchv1.PodFailurePolicyAction, code int32) batchv1.PodFailurePolicyRule {
			return batchv1.PodFailurePolicyRule{Action: action,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
					Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code}}}
		}
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			rule(batchv1.PodFailurePolicyActionIgnore, 1), rule(batchv1.PodFailurePolicyActionCount, 2)}}
	}
	status := func(f func(*batchv1.JobStatus)) *batchv1.JobStatus { s := &batchv1.JobStatus{}; f(s); return s }
	released := func(p *corev1.Pod) workloads.Write {
		after := p.DeepCopy()
		after.Finalizers = nil
		return workloads.Write{Verb: workloads.Patch, Base: p, Object: after}
	}
	for name, c := range map[string]struct {
		job    *batchv1.Job
		pods   []*corev1.Pod
		next   *batchv1.JobStatus
		writes []workloads.Write
		want   Progress
		ends   string
	}{
		"no new status": {job: testJob()},
		"without indexes": {
			job:  testJob(func(j *batchv1.Job) { j.Status.Succeeded = 1 }),
			next: status(func(s *batchv1.JobStatus) { s.Succeeded, s.Failed = 3, 1 }),
			want: Progress{SucceededPods: 2, FailedPods: 1},
		},
		"with indexes": {
			job: testJob(indexedJob(6), func(j *batchv1.Job) { j.Status.CompletedIndexes = "0" }),
			next: status(func(s *batchv1.JobStatus) {
				s.Succeeded, s.Failed, s.CompletedIndexes, s.FailedIndexes = 4, 1, "0-3", new("5")
			}),
			want: Progress{SucceededPods: 3, FailedPods: 1, SucceededIndexes: 3, FailedIndexes: 1},
		},
		"indexes above the completions": {
			job: testJob(indexedJob(2), func(j *batchv1.Job) { j.Status.CompletedIndexes = "0,5" }),
			next: status(func(s *batchv1.JobStatus) {
				s.CompletedIndexes = "0,1,5"
			}),
			want: Progress{SucceededPods: 1, SucceededIndexes: 1},
		},
		"it ends": {
			job: testJob(),
			next: status(func(s *batchv1.JobStatus) {
				s.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue,
					Reason: "CompletionsReached"}}
			}),
			ends: "CompletionsReached",
		},
		"a rule counts a failure": {
			job:  testJob(policy, func(j *batchv1.Job) { j.Status.UncountedTerminatedPods = uncountedFailed("a") }),
			pods: []*corev1.Pod{failing("a", 2), failing("b", 2), failing("c", 3)},
			next: status(func(s *batchv1.JobStatus) { s.UncountedTerminatedPods = uncountedFailed("a", "b", "c") }),
			want: Progress{PolicyActions: map[batchv1.PodFailurePolicyAction]int{
				batchv1.PodFailurePolicyActionCount: 1}},
		},
		"a rule ignores a failure": {
			job: testJob(policy), writes: []workloads.Write{released(failing("a", 1)), released(failing("b", 2))},
			want: Progress{PolicyActions: map[batchv1.PodFailurePolicyAction]int{
				batchv1.PodFailurePolicyActionIgnore: 1}},
		},
	} {
		got := ProgressOf(c.job, c.pods, c.next, c.writes)
		ends := ""
		if got.Finished != nil {
			ends = got.Finished.Reason
		}
		if got.SucceededPods != c.want.SucceededPods || got.FailedPods != c.want.FailedPods ||
			got.SucceededIndexes != c.want.SucceededIndexes || got.FailedIndexes != c.want.FailedIndexes ||
			ends != c.ends || !maps.Equal(got.PolicyActions, c.want.PolicyActions) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func uncountedFailed(uids ...types.UID) *batchv1.UncountedTerminatedPods {
	return &batchv1.UncountedTerminatedPods{Failed: uids}
}
