package differential

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

func TestNormalizedObjectsOfTwoServersAreEqual(t *testing.T) {
	t.Parallel()
	side := func(uid, suffix, node, hash string) map[string][]runtime.Object {
		now := metav1.Now()
		return map[string][]runtime.Object{
			"ReplicaSet": {&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "w-" + hash, UID: types.UID(uid),
				ResourceVersion: uid, CreationTimestamp: now}}},
			"Pod": {&corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "w-", Name: "w-" + suffix,
				Labels: map[string]string{"pod-template-hash": hash}}, Spec: corev1.PodSpec{NodeName: node}}},
			"Event": {
				&corev1.Event{Reason: "ScalingReplicaSet", InvolvedObject: corev1.ObjectReference{Kind: "Deployment"}},
				&corev1.Event{Reason: "Scheduled", InvolvedObject: corev1.ObjectReference{Kind: "Pod"}},
			},
		}
	}
	first, err := normalize(side("1", "abcde", "node-0", "5"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := normalize(side("2", "fghij", "node-1", "5"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := compare(first, second); diff != "" || len(first) != 3 {
		t.Errorf("%d objects, difference:\n%s", len(first), diff)
	}
	other, err := normalize(side("2", "fghij", "node-1", "6"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := compare(first, other); strings.Count(diff, "- 1 x ") != 2 || strings.Count(diff, "+ 1 x ") != 2 {
		t.Errorf("another template hash: difference\n%s", diff)
	}
}

// TestCompareCountsObjects checks that the number of equal objects is compared too.
func TestCompareCountsObjects(t *testing.T) {
	t.Parallel()
	if diff := compare([]string{"Pod a", "Pod a"}, []string{"Pod a"}); diff != "- 1 x Pod a\n" {
		t.Errorf("difference %q", diff)
	}
}

// TestOrderOfPods records the steps of pods of a StatefulSet.
func TestOrderOfPods(t *testing.T) {
	t.Parallel()
	p := &plane{steps: map[string][]string{}}
	pod := func(name, kind string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: kind, Name: "w", Controller: new(true)}}}}
	}
	first, second := pod("w-0", "StatefulSet"), pod("w-1", "StatefulSet")
	p.recordStep("+", nil, first)
	p.recordStep("+", nil, second)
	p.recordStep("+", nil, pod("other", "ReplicaSet"))
	deleting := second.DeepCopy()
	deleting.DeletionTimestamp = new(metav1.Now())
	p.recordStep("-", second, deleting)
	p.recordStep("-", deleting, deleting) // its removal
	p.recordStep("-", first, first)       // removed at once
	if got := strings.Join(p.takeSteps("ns"), " "); got != "+w-0 +w-1 -w-1 -w-0" {
		t.Errorf("got steps %s", got)
	}
	if got := p.takeSteps("ns"); len(got) > 0 {
		t.Errorf("steps %v are left", got)
	}
}

// TestScriptsFollowFromTheirSeed checks that both control planes get the same edits, and that all kinds and most edits
// occur.
func TestScriptsFollowFromTheirSeed(t *testing.T) {
	t.Parallel()
	words := map[string]bool{}
	for seed := range uint64(300) {
		a, b := script(seed), script(seed)
		for i, e := range a {
			what, _, _ := strings.Cut(e.what, "0x") // before the first pointer
			if again, _, _ := strings.Cut(b[i].what, "0x"); what != again {
				t.Fatalf("seed %d, edit %d: %s and %s", seed, i, e.what, b[i].what)
			}
			words[strings.Join(strings.Fields(e.what)[:2], " ")] = true
		}
	}
	for _, want := range []string{"create Deployment", "create StatefulSet", "create DaemonSet", "create Job",
		"set image", "set partition", "set parallelism", "set suspend", "set paused", "delete pod", "delete with",
		"scale to"} {
		if !words[want] {
			t.Errorf("no script has an edit %q", want)
		}
	}
}

// TestConditionsAreCompared checks that their order does not matter, and everything else does.
func TestConditionsAreCompared(t *testing.T) {
	t.Parallel()
	lines := func(conditions ...appsv1.DeploymentCondition) []string {
		t.Helper()
		out, err := normalize(map[string][]runtime.Object{"Deployment": {&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "w"}, Status: appsv1.DeploymentStatus{Conditions: conditions}}}})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	available := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue}
	progressing := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue}
	if diff := compare(lines(available, progressing), lines(progressing, available)); diff != "" {
		t.Errorf("another order: difference\n%s", diff)
	}
	unavailable := available
	unavailable.Status = corev1.ConditionFalse
	if compare(lines(available), lines(unavailable)) == "" || compare(lines(available), lines()) == "" {
		t.Error("another condition: no difference")
	}
}
