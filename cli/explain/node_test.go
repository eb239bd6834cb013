package explain

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent"
	"berth/agent/plan"
	"berth/agent/source"
	"berth/nodeapi"
)

func TestTheNodeTellsWhatIsWrongAndWithWhichPod(t *testing.T) {
	t.Parallel()
	pod := source.Warning{File: "/m/web.yaml", Message: "spec.x: not done"}
	pod.Pod = types.NamespacedName{Namespace: "default", Name: "web"}
	n := Node{
		Name: "n", Waiting: "waiting for the container runtime", Since: time.Unix(0, 0), Store: "disk full",
		Sources: []*source.Snapshot{{
			FileErrors: []source.FileError{{Path: "/m/bad-db.yaml", Line: 3, Message: "unknown field"}, {Path: "/m/kept-db2.yaml", LastGoodKept: true}},
			Warnings:   []source.Warning{pod, {File: "/m/other.yaml", Message: "empty"}},
		}},
	}
	got := n.Summary()
	want := nodeapi.NodeSummary{
		Name:     "n",
		BadFiles: []nodeapi.BadFile{{Path: "/m/bad-db.yaml", Line: 3, Message: "unknown field"}, {Path: "/m/kept-db2.yaml", LastGood: true}},
		Warnings: []nodeapi.Warning{
			{Object: "pod/default/web", Message: "spec.x: not done"}, {Object: "/m/other.yaml", Message: "empty"},
			{Object: "container runtime", Message: "waiting for the container runtime (since 1970-01-01T00:00:00Z); no pod is started before it has told what it has"},
			{Object: "local store", Message: "records of pods are in memory only: disk full"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if w := n.WarningsOf("default", "web"); len(w) != 1 || w[0].Message != "spec.x: not done" {
		t.Errorf("%+v", w)
	}
	if w := n.WarningsOf("other", "web"); len(w) != 0 {
		t.Errorf("%+v", w)
	}
	if why := n.Missing("db"); why == "" {
		t.Error("the bad file is not named")
	}
	if why := n.Missing("db2"); why != "" {
		t.Errorf("%q: its last good version is kept", why)
	}
}

func TestARuntimeThatIsAwayIsToldFirst(t *testing.T) {
	t.Parallel()
	n := Node{Runtime: "container runtime is down: connection refused"}
	if w := n.Summary().Warnings; len(w) != 1 || w[0].Object != "container runtime" {
		t.Errorf("the node warns %+v", w)
	}
	why := func(phase corev1.PodPhase) *nodeapi.Why {
		return &nodeapi.Why{Namespace: "default", Name: "web", Phase: phase, Summary: "well", Waiting: []nodeapi.Wait{{For: "X"}}}
	}
	w := why(corev1.PodRunning)
	n.Away(w)
	if len(w.Waiting) != 2 || w.Waiting[0].For != "RuntimeNotReady" || w.Summary != "default/web is told of as it was before: "+n.Runtime {
		t.Errorf("%+v", w)
	}
	for what, none := range map[string]func(w *nodeapi.Why){
		"of a pod that is over":                                  func(w *nodeapi.Why) { w.Phase = corev1.PodSucceeded; n.Away(w) },
		"of a runtime that is well":                              func(w *nodeapi.Why) { Node{}.Away(w) },
		"of one that has told nothing yet, which is said anyway": func(w *nodeapi.Why) { Node{Waiting: "w", Runtime: "r"}.Away(w) },
	} {
		w := why(corev1.PodRunning)
		if none(w); len(w.Waiting) != 1 || w.Summary != "well" {
			t.Errorf("%s: %+v", what, w)
		}
	}
}

func TestAManifestMeetsWhatIsHere(t *testing.T) {
	t.Parallel()
	pod := func(uid, image string) *corev1.Pod {
		p := &corev1.Pod{}
		p.Namespace, p.Name, p.UID = "default", "web", types.UID(uid)
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: image, ImagePullPolicy: corev1.PullIfNotPresent}}
		return p
	}
	asked := 0
	here := Here{
		Find: func(string, string) (*agent.Snapshot, bool) { return &agent.Snapshot{Pod: pod("1", "old")}, true },
		Objects: func(*corev1.Pod, map[source.ObjectKey]plan.Object) plan.Objects {
			return nil
		},
		Present: func(_ *corev1.Pod, image string, _ plan.Objects) (plan.Image, bool) {
			return plan.Image{ID: image}, image == "old"
		},
		Refusal: func(_, _ *corev1.Pod) string { asked++; return "OutOfcpu" },
	}
	for _, row := range []struct {
		pod     *corev1.Pod
		change  nodeapi.Change
		refusal int
	}{
		{pod("1", "old"), nodeapi.Keep, 0},
		{pod("1", "new"), nodeapi.Update, 0},
		{pod("2", "old"), nodeapi.Replace, 1},
	} {
		asked = 0
		out := Manifest(&source.DesiredState{Pods: []*corev1.Pod{row.pod}, Warnings: []source.Warning{{File: "f", Message: "m"}}}, here, time.Unix(0, 0))
		if len(out.Pods) != 1 || out.Pods[0].Change != row.change || asked != row.refusal || len(out.Warnings) != 1 {
			t.Errorf("%s %s: %+v, asked %d times", row.pod.UID, row.pod.Spec.Containers[0].Image, out, asked)
		}
	}
}
