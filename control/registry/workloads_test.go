package registry

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestStatusOfWorkloadsIsValidated checks that an update of the status subresource is compared with the stored object.
func TestStatusOfWorkloadsIsValidated(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c", ResourceVersion: "1"}
	for _, c := range []struct {
		group, resource string
		obj, old        runtime.Object
		want            string
	}{
		{"apps", "deployments",
			&appsv1.Deployment{ObjectMeta: meta},
			&appsv1.Deployment{ObjectMeta: meta, Status: appsv1.DeploymentStatus{CollisionCount: new(int32(1))}},
			"status.collisionCount: Invalid value: 0: cannot be decremented"},
		{"apps", "statefulsets",
			&appsv1.StatefulSet{ObjectMeta: meta},
			&appsv1.StatefulSet{ObjectMeta: meta, Status: appsv1.StatefulSetStatus{CollisionCount: new(int32(1))}},
			"status.collisionCount: Invalid value: 0: cannot be decremented"},
		{"apps", "daemonsets",
			&appsv1.DaemonSet{ObjectMeta: meta},
			&appsv1.DaemonSet{ObjectMeta: meta, Status: appsv1.DaemonSetStatus{CollisionCount: new(int32(1))}},
			"status.collisionCount: Invalid value: 0: cannot be decremented"},
		{"apps", "replicasets",
			&appsv1.ReplicaSet{ObjectMeta: meta, Status: appsv1.ReplicaSetStatus{FullyLabeledReplicas: 1}},
			&appsv1.ReplicaSet{ObjectMeta: meta},
			"status.fullyLabeledReplicas: Invalid value: 1: cannot be greater than status.replicas"},
		{"batch", "jobs",
			&batchv1.Job{ObjectMeta: meta},
			&batchv1.Job{ObjectMeta: meta, Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
				{Type: batchv1.JobFailed, Status: corev1.ConditionTrue},
			}}},
			"status.conditions: Invalid value: cannot disable the terminal Failed=True condition"},
	} {
		s := StatusStrategy{NewStrategy(Find(All(), c.group, c.resource), nil)}
		s.PrepareForUpdate(t.Context(), c.obj, c.old)
		var got []string
		for _, err := range s.ValidateUpdate(t.Context(), c.obj, c.old) {
			got = append(got, err.Error())
		}
		if !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: got\n%s\nwant\n%s", c.resource, strings.Join(got, "\n"), c.want)
		}
	}
}

func TestWarningAboutUnlimitedRevisions(t *testing.T) {
	t.Parallel()
	s := NewStrategy(Find(All(), "apps", "statefulsets"), nil)
	for limit, want := range map[int32]int{-1: 1, 0: 0, 10: 0} {
		set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{RevisionHistoryLimit: &limit}}
		if got := s.WarningsOnCreate(t.Context(), set); len(got) != want {
			t.Errorf("revisionHistoryLimit %d: warnings %q", limit, got)
		}
	}
	if got := s.WarningsOnCreate(t.Context(), &appsv1.StatefulSet{}); len(got) > 0 {
		t.Errorf("no revisionHistoryLimit: warnings %q", got)
	}
}
