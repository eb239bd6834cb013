package replicaset

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type podOption func(*corev1.Pod)

// runningPod returns a pod of node "n" that was created two hours ago and is ready since one hour.
func runningPod(uid string, options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: uid, UID: types.UID(uid), CreationTimestamp: ago(2 * time.Hour),
		},
		Spec: corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Hour),
		}}},
	}
	for _, o := range options {
		o(pod)
	}
	return pod
}

func onNode(name string) podOption { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func inPhase(phase corev1.PodPhase) podOption {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func readyFor(d time.Duration) podOption {
	return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = ago(d) }
}

func createdAgo(d time.Duration) podOption {
	return func(p *corev1.Pod) { p.CreationTimestamp = ago(d) }
}

func cost(text string) podOption {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: text} }
}

func restarted(n int32) podOption {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: n}} }
}

func initRestarted(n int32, policy *corev1.ContainerRestartPolicy) podOption {
	return func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", RestartPolicy: policy}}
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", RestartCount: n}}
	}
}

// TestRanking: the first pod of each pair is deleted first.
func TestRanking(t *testing.T) {
	t.Parallel()
	unset := func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.Time{} }
	always := corev1.ContainerRestartPolicyAlways
	rows := map[string][2]*corev1.Pod{
		"without a node before pending": {runningPod("b", onNode("")), runningPod("a", inPhase(corev1.PodPending))},
		"pending before unknown": {runningPod("b", inPhase(corev1.PodPending)),
			runningPod("a", inPhase(corev1.PodUnknown))},
		"unknown before unready":           {runningPod("b", inPhase(corev1.PodUnknown)), runningPod("a", unready)},
		"unready before a low cost":        {runningPod("b", unready), runningPod("a", cost("-5"))},
		"lower cost":                       {runningPod("b", cost("-5")), runningPod("a", cost("3"))},
		"negative cost before none":        {runningPod("b", cost("-5"), readyFor(90*time.Hour)), runningPod("a")},
		"cost before related pods":         {runningPod("b"), runningPod("a", onNode("full"), cost("1"))},
		"related pods before readiness":    {runningPod("b", onNode("full")), runningPod("a", readyFor(time.Second))},
		"ready for a shorter time":         {runningPod("b", readyFor(time.Minute)), runningPod("a", restarted(9))},
		"ready since an unknown time":      {runningPod("b", unset), runningPod("a", readyFor(time.Second))},
		"ready for a similar time, by UID": {runningPod("a", readyFor(61*time.Minute)), runningPod("b", restarted(9))},
		"more restarts":                    {runningPod("b", restarted(2)), runningPod("a", createdAgo(time.Second))},
		"more restarts of a sidecar":       {runningPod("b", initRestarted(1, &always)), runningPod("a")},
		"created later":                    {runningPod("b", createdAgo(time.Minute)), runningPod("a")},
		"created later, not init restarts": {runningPod("b", createdAgo(time.Minute)),
			runningPod("a", initRestarted(5, nil))},
		"created at a similar time, by UID": {
			runningPod("a", createdAgo(121*time.Minute)), runningPod("b"),
		},
		"in the future before now": {runningPod("b", readyFor(-time.Minute)), runningPod("a", readyFor(time.Second))},
	}
	related := []*corev1.Pod{runningPod("x", onNode("full")), runningPod("y", onNode("full")), runningPod("z")}
	for name, row := range rows {
		for _, pods := range [][]*corev1.Pod{{row[0], row[1]}, {row[1], row[0]}} {
			if got := NewRanking(related, now).Sorted(pods); got[0] != row[0] {
				t.Errorf("%s: the other pod is first", name)
			}
		}
	}
	if NewRanking(nil, now).Compare(runningPod("a"), runningPod("b")) != 0 {
		t.Error("equal pods are ordered")
	}
}

// TestInvalidDeletionCostCountsAsZero compares each invalid text with a cost of 0.
func TestInvalidDeletionCostCountsAsZero(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"": 0, "0": 0, "7": 7, "-7": -7, "+7": 0, "007": 0, "7.5": 0, "x": 0, "-": 0, "3000000000": 0, "-0": 0,
		"2147483647": 2147483647,
	} {
		if got := deletionCost(runningPod("a", cost(text))); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

// TestRelatedPodsThatAreNotActiveDoNotCount: a node with terminated and terminating pods is not doubled up.
func TestRelatedPodsThatAreNotActiveDoNotCount(t *testing.T) {
	t.Parallel()
	deleting := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	related := []*corev1.Pod{
		runningPod("x", onNode("idle"), inPhase(corev1.PodFailed)), runningPod("y", onNode("idle"), deleting),
		runningPod("z", onNode("busy")),
	}
	if NewRanking(related, now).Compare(runningPod("b", onNode("busy")), runningPod("a", onNode("idle"))) >= 0 {
		t.Error("the pod on the node with an active related pod does not go first")
	}
}
