package controllers

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"berth/workloads"
)

// TestFailedDaemonPodBackOffEndsWithChange: the delay of a node belongs to the generation of the set whose pods fail.
func TestFailedDaemonPodBackOffEndsWithChange(t *testing.T) {
	t.Parallel()
	now := time.Now()
	failures := failedDaemonPods{flowcontrol.NewBackOff(failedPodDelay, maxFailedPodDelay)}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "set"}}
	set.Status.ObservedGeneration = 1
	pod := newPod("agent-1", "node", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	pods := []*corev1.Pod{pod}
	if at := failures.retryAfter(set, pods, now)["node"]; !at.IsZero() {
		t.Errorf("the first failed pod has to wait until %v", at)
	}
	failures.record(set, []workloads.Write{{Verb: workloads.Delete, Object: pod}}, now)
	if at := failures.retryAfter(set, pods, now)["node"]; !at.After(now) {
		t.Errorf("the second failed pod has to wait until %v, want later than %v", at, now)
	}
	set.Status.ObservedGeneration = 2
	if at := failures.retryAfter(set, pods, now)["node"]; !at.IsZero() {
		t.Errorf("a failed pod of the changed set has to wait until %v", at)
	}
}
