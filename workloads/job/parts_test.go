package job

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestNewPodOfIndexedJob(t *testing.T) {
	t.Parallel()
	job := testJob(indexedJob(3), func(job *batchv1.Job) { job.Spec.BackoffLimitPerIndex = ptr.To[int32](5) })
	failedTwice := testPod("a", atIndex(2), exits(1, 0))
	failedTwice.Annotations[batchv1.JobIndexFailureCountAnnotation] = "1"
	pod := newPod(job, 2, failedTwice)
	if pod.GenerateName != "j-2-" || pod.Spec.Hostname != "j-2" || pod.Namespace != "ns" || !tracked(pod) {
		t.Errorf("pod %+v", pod.ObjectMeta)
	}
	if pod.Labels[batchv1.JobCompletionIndexAnnotation] != "2" ||
		pod.Annotations[batchv1.JobCompletionIndexAnnotation] != "2" ||
		pod.Annotations[batchv1.JobIndexFailureCountAnnotation] != "2" {
		t.Errorf("labels %v, annotations %v", pod.Labels, pod.Annotations)
	}
	for _, c := range []corev1.Container{pod.Spec.Containers[0], pod.Spec.InitContainers[0]} {
		if len(c.Env) != 1 || c.Env[0].Name != "JOB_COMPLETION_INDEX" ||
			c.Env[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']" {
			t.Errorf("environment of %s: %v", c.Name, c.Env)
		}
	}
	if ref := metav1.GetControllerOf(pod); ref == nil || ref.Kind != "Job" || ref.UID != job.UID ||
		!ptr.Deref(ref.BlockOwnerDeletion, false) {
		t.Errorf("owner %+v", ref)
	}
	job.Name = strings.Repeat("n", 63)
	if name := newPod(job, 12345, nil).GenerateName; len(name) != 58 || !strings.HasSuffix(name, "n-12345-") {
		t.Errorf("long name %q", name)
	}
}

func TestIndexes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "0": "0", "1-2": "1,2", "0-3,4": "0-4", "3,1": "1,3", "2,x,5-": "2", "4-2": "", "6-20": "6-9", "10": "",
		"-3": "", "1,3-5,7": "1,3-5,7",
	} {
		if got := parseIndexes(text, 10).String(); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
	}
	set := parseIndexes("1,3-5", 10)
	if got := set.missing(8, 3); !slices.Equal(got, []int{0, 2, 6}) {
		t.Errorf("missing %v", got)
	}
	if got := set.missing(3, 9); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("missing below 3: %v", got)
	}
	for other, want := range map[string]string{"": "1,3-5", "0-9": "", "4": "1,3,5", "1,5-7": "3,4", "0,2,6": "1,3-5"} {
		if got := set.without(parseIndexes(other, 10)).String(); got != want {
			t.Errorf("without %q: %q, want %q", other, got, want)
		}
	}
	if !set.has(4) || set.has(2) || set.total() != 4 || set.common(indexesOf(0, 1, 5, 6)) != 2 {
		t.Errorf("set %v", set)
	}
}

func TestSuccessPolicy(t *testing.T) {
	t.Parallel()
	rule := func(which string, count int32) batchv1.SuccessPolicyRule {
		var r batchv1.SuccessPolicyRule
		if which != "" {
			r.SucceededIndexes = &which
		}
		if count > 0 {
			r.SucceededCount = &count
		}
		return r
	}
	for name, c := range map[string]struct {
		rules     []batchv1.SuccessPolicyRule
		succeeded string
		want      string
	}{
		"all indexes of a rule": {[]batchv1.SuccessPolicyRule{rule("1-2", 0)}, "1,2", "Matched rules at index 0"},
		"one index is missing":  {[]batchv1.SuccessPolicyRule{rule("1-2", 0)}, "0,1", ""},
		"enough of the indexes": {[]batchv1.SuccessPolicyRule{rule("1-3", 2)}, "1,3", "Matched rules at index 0"},
		"enough indexes of any kind": {[]batchv1.SuccessPolicyRule{rule("9", 0), rule("", 2)}, "0,4",
			"Matched rules at index 1"},
		"not enough indexes of a kind":  {[]batchv1.SuccessPolicyRule{rule("1-3", 2)}, "0,1,4", ""},
		"a rule without a valid number": {[]batchv1.SuccessPolicyRule{rule("x", 0)}, "0", ""},
	} {
		got, met := successMet(&batchv1.SuccessPolicy{Rules: c.rules}, parseIndexes(c.succeeded, 10), 10)
		if got != c.want || met != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, met)
		}
	}
}

func TestFailurePolicyOperators(t *testing.T) {
	t.Parallel()
	pod := testPod("a", exits(3, 0))
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 9}}}}
	for name, c := range map[string]struct {
		operator  batchv1.PodFailurePolicyOnExitCodesOperator
		container string
		codes     []int32
		match     bool
	}{
		"in":                         {batchv1.PodFailurePolicyOnExitCodesOpIn, "", []int32{3}, true},
		"in, of an init container":   {batchv1.PodFailurePolicyOnExitCodesOpIn, "", []int32{9}, true},
		"in, of another container":   {batchv1.PodFailurePolicyOnExitCodesOpIn, "i", []int32{3}, false},
		"not in":                     {batchv1.PodFailurePolicyOnExitCodesOpNotIn, "c", []int32{4}, true},
		"not in, but it is":          {batchv1.PodFailurePolicyOnExitCodesOpNotIn, "c", []int32{3}, false},
		"an operator of the future":  {"Like", "", []int32{3}, false},
		"a container that is absent": {batchv1.PodFailurePolicyOnExitCodesOpNotIn, "x", []int32{4}, false},
	} {
		want := &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: c.operator, Values: c.codes}
		if c.container != "" {
			want.ContainerName = &c.container
		}
		if got := exitMatch(&pod.Status, want); (got != nil) != c.match {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestBackoffEnd(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{
		1: 10 * time.Second, 2: 20 * time.Second, 4: 80 * time.Second, 6: 320 * time.Second, 7: 10 * time.Minute,
		1 << 20: 10 * time.Minute,
	} {
		if got := backoffEnd(n, testNow).Sub(testNow); got != want {
			t.Errorf("%d failures: %v, want %v", n, got, want)
		}
	}
	if end := backoffEnd(0, testNow); !end.IsZero() {
		t.Errorf("no failure: %v", end)
	}
}

func TestFinishTime(t *testing.T) {
	t.Parallel()
	ago := func(d time.Duration) metav1.Time { return metav1.NewTime(testNow.Add(-d)) }
	notReady := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse,
			LastTransitionTime: ago(2 * time.Minute)}}
	}
	gone := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(ago(time.Minute)), ptr.To[int64](30)
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want time.Duration
	}{
		"containers":   {testPod("a", exits(1, time.Second), notReady), time.Second},
		"condition":    {testPod("a", notReady, gone), 2 * time.Minute},
		"deletion":     {testPod("a", gone), 90 * time.Second},
		"its creation": {testPod("a"), time.Hour},
	} {
		if got := testNow.Sub(finishTime(c.pod)); got != c.want {
			t.Errorf("%s: %v ago, want %v", name, got, c.want)
		}
	}
}

func TestDecideTTL(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ttl    *int32
		ago    time.Duration
		reason batchv1.JobConditionType
		want   string
	}{
		"expired":      {ptr.To[int32](60), time.Minute, batchv1.JobFailed, "delete"},
		"not expired":  {ptr.To[int32](60), 50 * time.Second, batchv1.JobComplete, "wake 10s"},
		"at once":      {ptr.To[int32](0), 0, batchv1.JobComplete, "delete"},
		"no limit":     {nil, time.Hour, batchv1.JobComplete, ""},
		"not finished": {ptr.To[int32](0), time.Hour, batchv1.JobSuspended, ""},
	} {
		job := testJob()
		job.Spec.TTLSecondsAfterFinished = c.ttl
		job.Status.Conditions = []batchv1.JobCondition{{Type: c.reason, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(testNow.Add(-c.ago))}}
		d, got := DecideTTL(testNow, job), ""
		switch {
		case len(d.Writes) == 1 && d.Writes[0].Propagation == metav1.DeletePropagationForeground:
			got = "delete"
		case !d.Wake.IsZero():
			got = "wake " + d.Wake.Sub(testNow).String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestDecideOrphan(t *testing.T) {
	t.Parallel()
	unowned := func(p *corev1.Pod) { p.OwnerReferences = nil }
	other := func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Workflow" }
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		job  *batchv1.Job
		want bool
	}{
		"its job is gone":           {testPod("a"), nil, true},
		"it has no controller":      {testPod("a", unowned), nil, true},
		"its job is finished":       {testPod("a"), testJob(with(batchv1.JobFailed, "")), true},
		"its job runs":              {testPod("a"), testJob(), false},
		"another controller has it": {testPod("a", other), nil, false},
		"it has no finalizer":       {testPod("a", counted), nil, false},
		"its job is not berth's own": {testPod("a"), testJob(func(j *batchv1.Job) { j.Spec.ManagedBy = new("x/y") }),
			false},
	} {
		if got := DecideOrphan(c.pod, c.job); (len(got) == 1) != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSidecarFinishesLast: the back-off begins when the last container finishes, which is a sidecar.
func TestSidecarFinishesLast(t *testing.T) {
	t.Parallel()
	ended := func(name string, after time.Duration) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(testNow.Add(after))}}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{
		{Name: "init"}, {Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
	}}, Status: corev1.PodStatus{
		InitContainerStatuses: []corev1.ContainerStatus{ended("init", time.Minute), ended("sidecar", 30*time.Second)},
		ContainerStatuses:     []corev1.ContainerStatus{ended("main", 0)},
	}}
	if got := finishTime(pod).Sub(testNow); got != 30*time.Second {
		t.Errorf("finished after %s", got)
	}
	pod.Status.InitContainerStatuses[1].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	if got := containersFinished(pod); !got.IsZero() {
		t.Errorf("finished at %s while the sidecar runs", got)
	}
}

// TestBackoffIsKept: the back-off of a failed pod holds after the pod is gone, grows with each failure and ends with a
// success.
func TestBackoffIsKept(t *testing.T) {
	t.Parallel()
	job := testJob(started)
	end := func(uid types.UID, phase corev1.PodPhase, at time.Duration) *corev1.Pod {
		p := testPod(string(uid))
		p.UID, p.Status.Phase = uid, phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(testNow.Add(at))}}}}
		return p
	}
	next := func(before *Backoff, pods ...*corev1.Pod) *Backoff {
		return new(NextBackoff(Input{Now: testNow, Job: job, Pods: pods, Backoff: before}))
	}
	check := func(what string, got *Backoff, want Backoff) {
		t.Helper()
		if *got != want {
			t.Errorf("%s: got %+v, want %+v", what, *got, want)
		}
	}
	b := next(nil, end("a", corev1.PodFailed, 0))
	check("first failure", b, Backoff{1, testNow})
	b = next(b)
	check("pod gone", b, Backoff{1, testNow})
	if d := Decide(Input{Now: testNow, Job: job, Backoff: b}); len(d.Writes) > 0 ||
		!d.Wake.Equal(testNow.Add(minBackoff)) {
		t.Errorf("got writes %v, wake %v", d.Writes, d.Wake)
	}
	b = next(b, end("b", corev1.PodFailed, 12*time.Second))
	check("second failure", b, Backoff{2, testNow.Add(12 * time.Second)})
	b = next(b, end("c", corev1.PodSucceeded, 40*time.Second))
	check("success", b, Backoff{})
	b = next(b, end("d", corev1.PodFailed, 50*time.Second), end("e", corev1.PodSucceeded, 45*time.Second))
	check("a failure after a success", b, Backoff{1, testNow.Add(50 * time.Second)})
	b = next(b, end("e", corev1.PodSucceeded, 45*time.Second))
	check("the success again", b, Backoff{1, testNow.Add(50 * time.Second)})
	check("unknown", next(nil), Backoff{})
}

// TestStartTimeStaysWithoutSuspension: a condition that another controller has worded differently does not start the
// Job again.
func TestStartTimeStaysWithoutSuspension(t *testing.T) {
	t.Parallel()
	job := testJob(started)
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionFalse,
		Reason: "Queue", Message: "admitted"}}
	d := Decide(Input{Now: testNow, Job: job, Pods: []*corev1.Pod{testPod("a")}})
	if d.Status == nil || !d.Status.StartTime.Equal(job.Status.StartTime) || len(d.Events) > 0 {
		t.Errorf("got status %+v, events %v", d.Status, d.Events)
	}
}
