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

// TestScriptsFollowFromTheirSeed checks that both control planes get the same edits, and that all kinds, fields and
// most edits occur.
func TestScriptsFollowFromTheirSeed(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for seed := range uint64(300) {
		edits, rest := script(seed)
		again, _ := script(seed)
		if rest < restTime || 2*rest > restTimeout/2 {
			t.Errorf("seed %d rests for %v", seed, rest)
		}
		for i, e := range edits {
			if e.what != again[i].what {
				t.Fatalf("seed %d, edit %d: %s and %s", seed, i, e.what, again[i].what)
			}
			all.WriteString(e.what + "\n")
		}
	}
	for _, want := range []string{"create Deployment", "create StatefulSet", "create DaemonSet", "create Job",
		"create ReplicationController", "create CronJob", "with a quota", "set image", "set partition",
		"set parallelism", "set suspend", "set paused", "set schedule", "set retention", "keep jobs",
		"create job manual", "wait for the next minute", "delete pod", "delete with", "scale to",
		`"minReadySeconds":1`, `"progressDeadlineSeconds":6`, `,"maxUnavailable":2}`, `"volumeClaimTemplates"`,
		`"whenDeleted":"Delete"`, `"successPolicy"`, `"backoffLimitPerIndex":1`, `"backoffLimit":1`,
		`"activeDeadlineSeconds"`, `"ttlSecondsAfterFinished"`, `"podReplacementPolicy":"Failed"`,
		`"podFailurePolicy"`} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no script has %q", want)
		}
	}
}

// TestRejectedPodsAreCompared checks that the random name of a rejected pod makes no difference.
func TestRejectedPodsAreCompared(t *testing.T) {
	t.Parallel()
	lines := func(pod, quota string) []string {
		t.Helper()
		message := `pods "` + pod + `" is forbidden: exceeded quota: ` + quota
		out, err := normalize(map[string][]runtime.Object{"ReplicaSet": {&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "w"}, Status: appsv1.ReplicaSetStatus{
				Conditions: []appsv1.ReplicaSetCondition{{Type: "ReplicaFailure", Message: message}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if diff := compare(lines("w-5d4f-abcde", "pods"), lines("w-5d4f-fghij", "pods")); diff != "" {
		t.Errorf("another pod: difference\n%s", diff)
	}
	if compare(lines("w-5d4f-abcde", "pods"), lines("w-5d4f-abcde", "other")) == "" {
		t.Error("another quota: no difference")
	}
}

// TestClaimsAreCompared checks that what the controllers of storage write makes no difference.
func TestClaimsAreCompared(t *testing.T) {
	t.Parallel()
	lines := func(edit func(*corev1.PersistentVolumeClaim)) []string {
		t.Helper()
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data-w-0"}}
		edit(claim)
		out, err := normalize(map[string][]runtime.Object{"PersistentVolumeClaim": {claim}})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	none := lines(func(*corev1.PersistentVolumeClaim) {})
	if diff := compare(none, lines(func(c *corev1.PersistentVolumeClaim) {
		c.Finalizers, c.Status.Phase = []string{"kubernetes.io/pvc-protection"}, corev1.ClaimPending
	})); diff != "" {
		t.Errorf("a finalizer: difference\n%s", diff)
	}
	if compare(none, lines(func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "w"}}
	})) == "" {
		t.Error("an owner: no difference")
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
