package explain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/agent/status"
	"berth/nodeapi"
)

func TestNodeSummaryReportsProblems(t *testing.T) {
	t.Parallel()
	pod := source.Warning{File: "/m/web.yaml", Message: "spec.x: not done"}
	pod.Pod = types.NamespacedName{Namespace: "default", Name: "web"}
	n := Node{
		Name: "n", WaitingForRuntime: "waiting for the container runtime", WaitingSince: time.Unix(0, 0),
		StoreProblem: "disk full",
		Sources: []*source.Snapshot{{
			FileErrors: []source.FileError{
				{Path: "/m/bad-db.yaml", Line: 3, Message: "unknown field"},
				{Path: "/m/kept-db2.yaml", LastGoodKept: true},
			},
			Warnings: []source.Warning{pod, {File: "/m/other.yaml", Message: "empty"}},
		}},
	}
	got := n.Summary()
	want := nodeapi.NodeSummary{
		Name: "n",
		InvalidManifests: []nodeapi.InvalidManifest{
			{Path: "/m/bad-db.yaml", Line: 3, Message: "unknown field"},
			{Path: "/m/kept-db2.yaml", LastValidInUse: true},
		},
		Warnings: []nodeapi.Warning{
			{Object: "pod/default/web", Message: "spec.x: not done"}, {Object: "/m/other.yaml", Message: "empty"},
			{
				Object: "container runtime",
				Message: "waiting for the container runtime (since 1970-01-01T00:00:00Z); no pod is started before " +
					"the state of the runtime is known",
			},
			{Object: "local store", Message: "pod records are only in memory: disk full"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if w := n.PodWarnings("default", "web"); len(w) != 1 || w[0].Message != "spec.x: not done" {
		t.Errorf("%+v", w)
	}
	if w := n.PodWarnings("other", "web"); len(w) != 0 {
		t.Errorf("%+v", w)
	}
	if why := n.InvalidManifest("db"); why == "" {
		t.Error("the invalid manifest is not named")
	}
	if why := n.InvalidManifest("db2"); why != "" {
		t.Errorf("%q: its last good version is kept", why)
	}
}

func TestRuntimeProblemIsFirstWaitReason(t *testing.T) {
	t.Parallel()
	n := Node{RuntimeProblem: "container runtime is down: connection refused"}
	if w := n.Summary().Warnings; len(w) != 1 || w[0].Object != "container runtime" {
		t.Errorf("warnings of the node: %+v", w)
	}
	why := func(phase corev1.PodPhase) *nodeapi.PodExplanation {
		return &nodeapi.PodExplanation{
			Namespace:  "default",
			Name:       "web",
			Phase:      phase,
			Summary:    "well",
			WaitingFor: []nodeapi.WaitReason{{Reason: "X"}},
		}
	}
	w := why(corev1.PodRunning)
	n.AddRuntimeProblem(w)
	if len(w.WaitingFor) != 2 || w.WaitingFor[0].Reason != "RuntimeNotReady" ||
		w.Summary != "the state of default/web may be outdated: "+n.RuntimeProblem {
		t.Errorf("%+v", w)
	}
	for what, none := range map[string]func(w *nodeapi.PodExplanation){
		"finished pod":    func(w *nodeapi.PodExplanation) { w.Phase = corev1.PodSucceeded; n.AddRuntimeProblem(w) },
		"healthy runtime": func(w *nodeapi.PodExplanation) { Node{}.AddRuntimeProblem(w) },
		"runtime state unknown, which is reported separately": func(w *nodeapi.PodExplanation) {
			Node{WaitingForRuntime: "w", RuntimeProblem: "r"}.AddRuntimeProblem(w)
		},
	} {
		w := why(corev1.PodRunning)
		if none(w); len(w.WaitingFor) != 1 || w.Summary != "well" {
			t.Errorf("%s: %+v", what, w)
		}
	}
}

func TestPlanManifestUsesNodeState(t *testing.T) {
	t.Parallel()
	pod := func(uid, image string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID = "default", "web", types.UID(uid)
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: image, ImagePullPolicy: corev1.PullIfNotPresent}}
		return p
	}
	calls := 0
	here := PlanContext{
		Find: func(string, string) (*status.Snapshot, bool) { return &status.Snapshot{Pod: pod("1", "old")}, true },
		Objects: func(*corev1.Pod, map[source.ObjectKey]plan.Object) plan.Objects {
			return nil
		},
		LocalImage: func(_ *corev1.Pod, image string, _ plan.Objects) (plan.Image, bool) {
			return plan.Image{ID: image}, image == "old"
		},
		Rejection: func(_, _ *corev1.Pod) string { calls++; return "OutOfcpu" },
	}
	for _, row := range []struct {
		pod     *corev1.Pod
		change  nodeapi.Change
		refusal int
	}{
		{pod("1", "old"), nodeapi.Unchanged, 0},
		{pod("1", "new"), nodeapi.Update, 0},
		{pod("2", "old"), nodeapi.Replace, 1},
	} {
		calls = 0
		out := PlanManifest(
			&source.DesiredState{Pods: []*corev1.Pod{row.pod}, Warnings: []source.Warning{{File: "f", Message: "m"}}},
			here,
			time.Unix(0, 0),
		)
		if len(out.Pods) != 1 || out.Pods[0].Change != row.change || calls != row.refusal || len(out.Warnings) != 1 {
			t.Errorf("%s %s: got %+v after %d calls", row.pod.UID, row.pod.Spec.Containers[0].Image, out, calls)
		}
	}
}

func TestWhyOfOutdatedState(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "default", "web"
	s := &status.Snapshot{Pod: pod, Syncs: 1}
	waiting := &status.Snapshot{Pod: pod, Verdict: plan.Verdict{Message: "no CPU"}}
	state := func(s *status.Snapshot) PodState {
		return FromSnapshot(s, plan.Limits{}, func(plan.Action) string { return "" })
	}
	now := time.Now()
	known := Node{}.Why(s, []*status.Snapshot{waiting}, state, now)
	if want := Why(state(waiting), now).WaitingFor; len(known.OtherPods) != len(want) {
		t.Errorf("got other pods %+v, want %+v", known.OtherPods, want)
	}
	if w := (Node{RuntimeProblem: "runtime is down"}).Why(s, nil, state, now); w.Next != nil ||
		len(w.WaitingFor) == 0 || w.WaitingFor[0].Reason != "RuntimeNotReady" {
		t.Errorf("got %+v", w)
	}
}
