package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestBudgetStatusRequeuesWhenEvictionExpires: a pod that was not deleted counts as healthy again.
func TestBudgetStatusRequeuesWhenEvictionExpires(t *testing.T) {
	t.Parallel()
	now := time.Unix(10000, 0)
	pods := []*corev1.Pod{newPod("late", "n"), newPod("early", "n"), newPod("overdue", "n"), newPod("untouched", "n")}
	pdb := &policyv1.PodDisruptionBudget{Status: policyv1.PodDisruptionBudgetStatus{
		DisruptedPods: map[string]metav1.Time{
			"late": metav1.NewTime(now.Add(-10 * time.Second)), "early": metav1.NewTime(now.Add(-100 * time.Second)),
			"overdue": metav1.NewTime(now.Add(-time.Hour)),
		}}}
	for _, want := range []struct {
		healthy int32
		again   time.Duration
	}{{2, 20 * time.Second}, {3, 90 * time.Second}, {4, 0}} {
		out, again := budgetStatus(pdb, pods, 4, 1, now)
		if out.Status.CurrentHealthy != want.healthy || again != want.again {
			t.Errorf("got %d healthy, requeue after %v, want %d and %v", out.Status.CurrentHealthy, again, want.healthy,
				want.again)
		}
		pdb, now = out, now.Add(want.again)
	}
}
