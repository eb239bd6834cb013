package explain

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/agent/localworkloads"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/nodeapi"
	"berth/workloads"
)

// workload returns a workload decoded from JSON.
func workload[T workloads.Object](t *testing.T, kind string, o T, text string) T {
	t.Helper()
	if err := json.Unmarshal([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	o.SetName("web")
	o.SetNamespace("default")
	o.SetUID("w1")
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Kind: kind})
	return o
}

// ownedPod returns a pod of the workload.
func ownedPod(name, ownerKind string, phase corev1.PodPhase, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID("u-" + name),
		OwnerReferences: []metav1.OwnerReference{{Kind: ownerKind, UID: "w1", Controller: new(true)}},
	}}
	p.Spec.Containers = []corev1.Container{{Name: "app"}}
	p.Status.Phase = phase
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(t0.Add(-time.Second)),
		}}
	}
	return p
}

func TestWhyWorkload(t *testing.T) {
	t.Parallel()
	crashing := nodeapi.PodExplanation{Namespace: "default", Name: "web-a-node", WaitingFor: []nodeapi.WaitReason{{
		Reason: "CrashLoopBackOff", Target: "app", Message: "back-off 10s", Until: t0.Add(10 * time.Second),
		Details: []nodeapi.Detail{{Name: "restarts", Value: "1"}},
	}}}
	running := nodeapi.PodExplanation{Name: "web-a", Summary: "default/web-a is starting"}
	deployment := func(spec, status string) workloads.Object {
		return workload(t, "Deployment", &appsv1.Deployment{}, `{"spec":{"replicas":2`+spec+`},"status":{`+status+`}}`)
	}
	job := func(spec, status string) workloads.Object {
		return workload(t, "Job", &batchv1.Job{}, `{"spec":{"completions":3`+spec+`},"status":{`+status+`}}`)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, c := range []struct {
		name    string
		state   WorkloadState
		summary string
		waits   []string // reason and target
		next    []string
		pods    int
	}{
		{
			name: "ready", state: WorkloadState{
				View: localworkloads.View{Object: deployment("", `"readyReplicas":2`)},
				Pods: []*corev1.Pod{ownedPod("web-a", "ReplicaSet", "Running", true)},
			}, summary: "2 of 2 pods are ready",
		},
		{
			name: "a crashing container", state: WorkloadState{
				View:         localworkloads.View{Object: deployment("", `"readyReplicas":1`)},
				Pods:         []*corev1.Pod{ownedPod("web-a", "ReplicaSet", "Running", false)},
				Explanations: map[types.UID]nodeapi.PodExplanation{"u-web-a": crashing},
			}, summary: `1 of 2 pods are ready: pod web-a-node container "app": CrashLoopBackOff: ` +
				"back-off 10s (for another 10s)",
			waits: []string{`CrashLoopBackOff pod web-a-node container "app"`}, pods: 1,
		},
		{
			name: "a starting pod, one that has not started and one that terminates", state: WorkloadState{
				View: localworkloads.View{Object: deployment("", `"readyReplicas":0`)},
				Pods: []*corev1.Pod{ownedPod("web-a", "ReplicaSet", "Pending", false),
					ownedPod("web-b", "ReplicaSet", "Pending", false),
					deleted(ownedPod("web-c", "ReplicaSet", "Running", true))},
				Explanations: map[types.UID]nodeapi.PodExplanation{
					"u-web-a": running, "u-web-c": {Summary: "default/web-c is terminating"},
				},
			}, summary: "0 of 2 pods are ready: pod web-a: PodNotReady: default/web-a is starting",
			waits: []string{"PodNotReady pod web-a", "PodNotStarted pod web-b", "Terminating pod "}, pods: 2,
		},
		{
			name: "minReadySeconds", state: WorkloadState{
				View: localworkloads.View{Object: deployment(`,"minReadySeconds":5`, `"readyReplicas":1`)},
				Pods: []*corev1.Pod{ownedPod("web-a", "ReplicaSet", "Running", true)},
			}, summary: "1 of 2 pods are ready: pod web-a: MinReadySeconds: it is ready, but not yet " +
				"long enough to be available (for another 4s)",
			waits: []string{"MinReadySeconds pod web-a"},
		},
		{
			name: "a failed pod and the back-off of the ReplicaSet", state: WorkloadState{
				View:     localworkloads.View{Object: deployment("", `"readyReplicas":1`)},
				Children: []localworkloads.View{{RetryAt: t0.Add(20 * time.Second), Failures: 2}},
				Pods:     []*corev1.Pod{ownedPod("web-a", "ReplicaSet", "Failed", false)},
			}, summary: "1 of 2 pods are ready: BackOff: a failed pod is replaced after a delay, which " +
				"ends when the file changes (for another 20s)",
			waits: []string{"BackOff ", "PodFailed pod web-a"},
		},
		{
			name: "paused, and the deadline exceeded", state: WorkloadState{
				View: localworkloads.View{Object: deployment(`,"paused":true`, `"readyReplicas":2,"updatedReplicas":1,
					"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded"},
					{"type":"ReplicaFailure","status":"True","reason":"FailedCreate"},
					{"type":"Available","status":"False","reason":"MinimumReplicasUnavailable"}]`)},
			}, summary: "2 of 2 pods are ready: DeploymentPaused: the rollout is paused: 1 of 2 pods " +
				"have the current template",
			waits: []string{"DeploymentPaused ", "ProgressDeadlineExceeded ", "FailedCreate "},
		},
		{
			name: "nothing is decided", state: WorkloadState{
				View:     localworkloads.View{Object: deleted(deployment("", "")), Unobserved: 1},
				Children: []localworkloads.View{{Unobserved: 2}}, ShuttingDown: true,
			}, summary: "0 of 2 pods are ready: NodeShutdown: the node shuts down: no pods are created " +
				"or deleted for workloads",
			waits: []string{"NodeShutdown ", "PodsNotObserved ", "Terminating "},
		},
		{
			name: "predicted steps", state: WorkloadState{
				View: localworkloads.View{Object: deployment("", `"readyReplicas":2`)},
				Steps: []localworkloads.Step{{Verb: workloads.Create, Pod: ownedPod("web-b", "ReplicaSet", "", false)},
					{Verb: workloads.Delete, Pod: ownedPod("web-a", "ReplicaSet", "", false),
						After: "pod web-b is ready"}},
			}, summary: "2 of 2 pods are ready",
			next: []string{"CreatePod web-b ", "DeletePod web-a pod web-b is ready"},
		},
		{
			name: "partition", state: WorkloadState{View: localworkloads.View{Object: workload(t, "StatefulSet",
				&appsv1.StatefulSet{}, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}},
					"status":{"replicas":2,"updatedReplicas":1,"readyReplicas":1}}`)}},
			summary: "1 of 1 pods are ready: Partition: pods with an ordinal below 1 keep an older template",
			waits:   []string{"Partition "},
		},
		{
			name: "node not selected", state: WorkloadState{View: localworkloads.View{Object: workload(t, "DaemonSet",
				&appsv1.DaemonSet{}, `{"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"}}}}}`)}, Node: node},
			summary: "0 of 0 pods are ready: NodeNotSelected: the node selector, the affinity or the " +
				"tolerations of the pod template exclude this node",
			waits: []string{"NodeNotSelected "},
		},
		{
			name: "on delete", state: WorkloadState{View: localworkloads.View{Object: workload(t, "DaemonSet",
				&appsv1.DaemonSet{}, `{"spec":{"updateStrategy":{"type":"OnDelete"}},"status":{"numberReady":1,
					"desiredNumberScheduled":1,"currentNumberScheduled":1}}`)}, Node: node},
			summary: "1 of 1 pods are ready: OnDelete: 1 pods have an older template until they are deleted",
			waits:   []string{"OnDelete "},
		},
		{
			name: "running Job", state: WorkloadState{
				View: localworkloads.View{Object: job("", `"succeeded":1,"active":1`)},
				Pods: []*corev1.Pod{ownedPod("web-a", "Job", "Running", false),
					ownedPod("web-b", "Job", "Failed", false),
					ownedPod("web-c", "Job", "Succeeded", false)},
				Explanations: map[types.UID]nodeapi.PodExplanation{"u-web-a": running},
			}, summary: "1 of 3 completions have succeeded, 1 pods are active",
		},
		{
			name: "failed Job", state: WorkloadState{View: localworkloads.View{Object: job("", `"conditions":[
				{"type":"Failed","status":"True","reason":"BackoffLimitExceeded","message":"too often"}]`)}},
			summary: "is finished: Failed: BackoffLimitExceeded: too often",
		},
		{
			name: "suspended Job", state: WorkloadState{View: localworkloads.View{Object: job(`,"suspend":true`, "")}},
			summary: "0 of 3 completions have succeeded, 0 pods are active: JobSuspended: the Job is " +
				"suspended", waits: []string{"JobSuspended "},
		},
		{
			name: "CronJob", state: WorkloadState{View: localworkloads.View{Next: t0.Add(time.Minute), Object: workload(
				t, "CronJob", &batchv1.CronJob{}, `{"spec":{}}`)}},
			summary: "0 Jobs are active, the next schedule is in 1m0s", next: []string{"CreateJob  "},
		},
		{
			name: "suspended CronJob", state: WorkloadState{View: localworkloads.View{
				Next:   t0.Add(time.Minute),
				Object: workload(t, "CronJob", &batchv1.CronJob{}, `{"spec":{"suspend":true}}`),
			}},
			summary: "0 Jobs are active: CronJobSuspended: the schedule is suspended",
			waits:   []string{"CronJobSuspended "},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := WhyWorkload(c.state, t0)
			_, summary, found := strings.Cut(w.Summary, " default/web")
			if summary = strings.TrimLeft(summary, ": "); !found || summary != c.summary {
				t.Errorf("summary\n%q, want\n%q", w.Summary, c.summary)
			}
			var waits, next []string
			for _, x := range w.WaitingFor {
				waits = append(waits, x.Reason+" "+x.Target)
			}
			for _, s := range w.Next {
				next = append(next, s.Action+" "+s.Target+" "+s.After)
			}
			got, want := fmt.Sprint(waits, next, len(w.Pods)), fmt.Sprint(c.waits, c.next, c.pods)
			if got != want {
				t.Errorf("waits, next steps and number of pods %s, want %s", got, want)
			}
		})
	}
}

func deleted[T workloads.Object](o T) T {
	o.SetDeletionTimestamp(new(metav1.NewTime(t0)))
	return o
}

// TestNewWorkloadState checks which views, pods and steps belong to a workload.
func TestNewWorkloadState(t *testing.T) {
	t.Parallel()
	view := func(kind, name, owner string, children ...workloads.Object) localworkloads.View {
		o := workload(t, kind, &appsv1.ReplicaSet{}, "{}")
		o.Name, o.UID = name, types.UID(name)
		if owner != "" {
			o.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner)}}
		}
		return localworkloads.View{Object: o, Children: children}
	}
	pod := func(name string) *corev1.Pod { return ownedPod(name, "ReplicaSet", "", false) }
	set := view("ReplicaSet", "web-1", "web", pod("b"), pod("a"))
	views := []localworkloads.View{view("Deployment", "other", ""), view("Deployment", "web", "", set.Object), set,
		view("ReplicaSet", "other-1", "other", pod("c"))}
	previews := []localworkloads.Preview{{Steps: []localworkloads.Step{
		{Pod: pod("d"), Owners: []types.UID{"web-1", "web"}}, {Pod: pod("e"), Owners: []types.UID{"other-1", "other"}},
	}}}
	for _, c := range []struct{ kind, name, want string }{
		{"Deployment", "web", "1 [a b] [d]"}, {"ReplicaSet", "web-1", "0 [a b] [d]"},
		{"Deployment", "other", "1 [c] [e]"},
		{"Deployment", "web-1", "not found"}, {"StatefulSet", "web", "not found"},
	} {
		got := "not found"
		if s, found := NewWorkloadState(views, previews, c.kind, "default", c.name); found {
			var pods, steps []string
			for _, p := range s.Pods {
				pods = append(pods, p.Name)
			}
			for _, step := range s.Steps {
				steps = append(steps, step.Pod.Name)
			}
			got = fmt.Sprint(len(s.Children), " ", pods, " ", steps)
		}
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.kind, c.name, got, c.want)
		}
	}
}

// TestPlanWorkloads checks the conversion of previews and the admission of new pods.
func TestPlanWorkloads(t *testing.T) {
	t.Parallel()
	var asked []string
	h := PlanContext{
		Limits: limits,
		Find:   func(string, string) (*status.Snapshot, bool) { return nil, false },
		Objects: func(*corev1.Pod, map[source.ObjectKey]plan.Object) plan.Objects {
			return plan.Objects{}
		},
		LocalImage: func(*corev1.Pod, string, plan.Objects) (plan.Image, bool) { return plan.Image{}, false },
		Rejection: func(pod, replaced *corev1.Pod) string {
			text := pod.Name
			if replaced != nil {
				text += " for " + replaced.Name
			}
			asked = append(asked, text)
			return "OutOfcpu"
		},
	}
	step := func(verb workloads.Verb, name, after string) localworkloads.Step {
		pod := ownedPod(name, "ReplicaSet", "", false)
		pod.Spec.Containers[0].Image = "nginx"
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		return localworkloads.Step{Verb: verb, Pod: pod, After: after}
	}
	surge, zero := intstr.FromString("25%"), intstr.FromInt32(0)
	d := workload(t, "Deployment", &appsv1.Deployment{}, `{"spec":{"replicas":3,"strategy":{"type":"RollingUpdate"}}}`)
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &zero}
	old := d.DeepCopy()
	h.Workloads = func([]source.Workload, time.Time) []localworkloads.Preview {
		return []localworkloads.Preview{{
			Old: old, New: d, Changed: true, Settled: true, Fields: []string{"spec.replicas"},
			Overrides: map[string]string{"scale": "5 replicas"}, Steps: []localworkloads.Step{
				step(workloads.Create, "new-1", ""), step(workloads.Delete, "old-1", "pod new-1 is ready"),
				step(workloads.Create, "new-2", "pod new-1 is ready"),
				step(workloads.Create, "new-3", "pod old-1 is deleted"),
			},
		}}
	}
	r := PlanManifest(&source.DesiredState{Workloads: []source.Workload{{Object: d}}}, h, t0)
	if len(r.Workloads) != 1 {
		t.Fatalf("unexpected plan %+v", r)
	}
	p := r.Workloads[0]
	if got, want := strings.Join(asked, ", "), "new-1, new-2, new-3 for old-1"; got != want {
		t.Errorf("asked for the admission of %s, want %s", got, want)
	}
	if fmt.Sprint(p.Limits) != "[{replicas 3} {strategy RollingUpdate} {pods at most 4} {available pods at least 3}]" {
		t.Errorf("limits %v", p.Limits)
	}
	if p.Change != nodeapi.Update || p.EndedOverrides["scale"] == "" || p.Incomplete || len(p.Steps) != 4 ||
		p.Steps[0].Rejection != "OutOfcpu" || p.Steps[1].Rejection != "" || p.Steps[1].Action != "DeletePod" {
		t.Errorf("unexpected plan %+v", p)
	}
	if p.NewPod == nil || p.NewPod.Change != nodeapi.Create || len(p.NewPod.Stages[2].Actions) == 0 {
		t.Errorf("unexpected new pod %+v", p.NewPod)
	}
}

func TestWorkloadChange(t *testing.T) {
	t.Parallel()
	job := func(uid types.UID, text string) workloads.Object {
		j := workload(t, "Job", &batchv1.Job{}, text)
		j.UID = uid
		return j
	}
	for _, c := range []struct {
		name    string
		preview localworkloads.Preview
		change  nodeapi.Change
		reasons string
	}{
		{"new", localworkloads.Preview{New: job("1", "{}"), Changed: true}, nodeapi.Create, ""},
		{"other UID", localworkloads.Preview{Old: job("2", "{}"), New: job("1", "{}"), Changed: true},
			nodeapi.Replace, ""},
		{"expired", localworkloads.Preview{New: job("1", "{}"), Expired: true}, nodeapi.Unchanged, "Finished"},
		{"name taken", localworkloads.Preview{Old: job("2", "{}"), New: job("1", "{}"), NameTaken: true, Changed: true},
			nodeapi.Unchanged, "NameTaken"},
		{"suspended", localworkloads.Preview{Old: job("1", "{}"), New: job("1", `{"spec":{"suspend":true}}`),
			Changed: true}, nodeapi.Update, "JobSuspended"},
	} {
		var reasons []string
		for _, r := range workloadReasons(c.preview) {
			reasons = append(reasons, r.Code)
		}
		if got := workloadChange(c.preview); got != c.change || strings.Join(reasons, " ") != c.reasons {
			t.Errorf("%s: %s with %v, want %s with %s", c.name, got, reasons, c.change, c.reasons)
		}
	}
}
