package deployment

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/workloads"
)

func counts(replicas, updated, ready, available int32) deploymentOption {
	return func(d *appsv1.Deployment) {
		s := &d.Status
		s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas = replicas, updated, ready, available
	}
}

func deadline(seconds int32) deploymentOption {
	return func(d *appsv1.Deployment) {
		if d.Spec.ProgressDeadlineSeconds = &seconds; seconds == 0 {
			d.Spec.ProgressDeadlineSeconds = nil
		}
	}
}

// show returns a condition as "status reason message".
func show(c *appsv1.DeploymentCondition) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

func TestProgressingCondition(t *testing.T) {
	t.Parallel()
	d3 := newDeployment(3)
	one := func(available int32) sets { return sets{newSet(d3, "v1", 3, available, 1)} }
	name := one(0)[0].Name
	for _, c := range []struct {
		name string
		d    *appsv1.Deployment
		sets sets
		want string
		age  int // seconds since the last update
		wake int // seconds from now
	}{
		{
			name: "created", d: newDeployment(3), wake: 601,
			want: fmt.Sprintf("True NewReplicaSetCreated Created new replica set %q", name),
		},
		{
			name: "found", d: newDeployment(3, counts(3, 3, 0, 0)), sets: one(0), wake: 601,
			want: fmt.Sprintf("True FoundNewReplicaSet Found new replica set %q", name),
		},
		{
			name: "progress renews the update time", sets: one(1), wake: 601,
			d:    newDeployment(3, counts(3, 3, 0, 0), progressing("True", reasonUpdated, 100)),
			want: fmt.Sprintf("True ReplicaSetUpdated ReplicaSet %q is progressing.", name),
		},
		{
			name: "no progress within the deadline", sets: one(1), age: 600, wake: 1,
			d:    newDeployment(3, counts(3, 3, 1, 1), progressing("True", reasonUpdated, 600)),
			want: "True ReplicaSetUpdated ",
		},
		{
			name: "timed out", sets: one(1),
			d:    newDeployment(3, counts(3, 3, 1, 1), progressing("True", reasonUpdated, 601)),
			want: fmt.Sprintf("False ProgressDeadlineExceeded ReplicaSet %q has timed out progressing.", name),
		},
		{
			name: "stays timed out", sets: one(1), age: 9,
			d:    newDeployment(3, counts(3, 3, 1, 1), progressing("False", reasonTimedOut, 9)),
			want: "False ProgressDeadlineExceeded ",
		},
		{
			name: "progress after the deadline", sets: one(2), wake: 601,
			d:    newDeployment(3, counts(3, 3, 1, 1), progressing("False", reasonTimedOut, 9)),
			want: fmt.Sprintf("True ReplicaSetUpdated ReplicaSet %q is progressing.", name),
		},
		{
			name: "complete", sets: one(3),
			d:    newDeployment(3, counts(3, 3, 1, 1), progressing("True", reasonUpdated, 601)),
			want: fmt.Sprintf("True NewReplicaSetAvailable ReplicaSet %q has successfully progressed.", name),
		},
		{
			name: "a complete rollout does not time out", sets: one(1), age: 9999,
			d:    newDeployment(3, counts(3, 3, 3, 3), progressing("True", reasonAvailable, 9999)),
			want: "True NewReplicaSetAvailable ",
		},
		{
			name: "paused", sets: one(1), d: newDeployment(3, paused, progressing("True", reasonUpdated, 601)),
			want: "Unknown DeploymentPaused Deployment is paused",
		},
		{
			name: "paused after the deadline", sets: one(1), age: 601,
			d:    newDeployment(3, paused, progressing("False", reasonTimedOut, 601)),
			want: "False ProgressDeadlineExceeded ",
		},
		{
			name: "resumed", sets: one(1), wake: 601,
			d:    newDeployment(3, counts(3, 3, 1, 1), progressing("Unknown", reasonPaused, 9999)),
			want: "Unknown DeploymentResumed Deployment is resumed",
		},
		{
			name: "without a deadline", sets: one(1),
			d: newDeployment(3, deadline(0), progressing("True", reasonUpdated, 9999)), want: "",
		},
		{
			name: "with the deadline that means none", sets: one(1),
			d: newDeployment(3, deadline(math.MaxInt32), progressing("True", reasonUpdated, 9999)), want: "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := Decide(Input{Now: now, Deployment: c.d, ReplicaSets: c.sets})
			status := out.Status
			if status == nil {
				status = &c.d.Status
			}
			got := findCondition(status.Conditions, appsv1.DeploymentProgressing)
			if show(got) != c.want {
				t.Errorf("condition %q, want %q", show(got), c.want)
			}
			if got != nil && !got.LastUpdateTime.Equal(new(at(-c.age))) {
				t.Errorf("updated at %v, want %d s ago", got.LastUpdateTime, c.age)
			}
			if wake := int(out.Wake.Sub(now).Seconds()); wake != c.wake && !(out.Wake.IsZero() && c.wake == 0) {
				t.Errorf("wake in %d s, want %d", wake, c.wake)
			}
		})
	}
}

func TestTransitionTimeIsKeptWhileTheStatusIs(t *testing.T) {
	t.Parallel()
	d := newDeployment(3, counts(3, 3, 0, 0), progressing("True", reasonFound, 100))
	out := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{newSet(d, "v1", 3, 1, 1)}})
	c := findCondition(out.Status.Conditions, appsv1.DeploymentProgressing)
	if !c.LastTransitionTime.Equal(new(at(-100))) || !c.LastUpdateTime.Equal(new(at(0))) {
		t.Errorf("transition %v, update %v", c.LastTransitionTime, c.LastUpdateTime)
	}
}

func TestStatusCounts(t *testing.T) {
	t.Parallel()
	d := newDeployment(10, image("v2"), rolling("3", "2"), func(d *appsv1.Deployment) { d.Generation = 7 })
	old := newSet(d, "v1", 6, 6, 1, func(rs *appsv1.ReplicaSet) {
		rs.Status.Replicas, *rs.Status.TerminatingReplicas = 7, 2
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedDelete", Message: "old",
		}}
	})
	current := newSet(d, "v2", 7, 1, 2, func(rs *appsv1.ReplicaSet) {
		rs.Status.Replicas, rs.Status.ReadyReplicas, *rs.Status.TerminatingReplicas = 5, 3, 1
		rs.Status.Conditions = []appsv1.ReplicaSetCondition{{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "new",
			LastTransitionTime: at(-5),
		}}
	})
	s := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{old, current}}).Status
	got := []int32{
		s.Replicas, s.UpdatedReplicas, s.ReadyReplicas, s.AvailableReplicas, s.UnavailableReplicas,
		*s.TerminatingReplicas,
	}
	if want := []int32{12, 5, 9, 7, 6, 3}; !slices.Equal(got, want) || s.ObservedGeneration != 7 {
		t.Errorf("counts %v, want %v; observed generation %d", got, want, s.ObservedGeneration)
	}
	if got := show(findCondition(s.Conditions, appsv1.DeploymentAvailable)); got !=
		"False MinimumReplicasUnavailable Deployment does not have minimum availability." {
		t.Errorf("Available: %s", got)
	}
	failure := findCondition(s.Conditions, appsv1.DeploymentReplicaFailure)
	if show(failure) != "True FailedCreate new" || !failure.LastUpdateTime.Equal(new(at(-5))) {
		t.Errorf("ReplicaFailure: %+v", failure)
	}

	d.Status = *s
	current.Status.AvailableReplicas, current.Status.Conditions, old.Status.Conditions = 2, nil, nil
	old.Status.TerminatingReplicas = nil
	s = Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{old, current}}).Status
	if got := show(findCondition(s.Conditions, appsv1.DeploymentAvailable)); got !=
		"True MinimumReplicasAvailable Deployment has minimum availability." {
		t.Errorf("Available: %s", got)
	}
	if findCondition(s.Conditions, appsv1.DeploymentReplicaFailure) != nil || s.TerminatingReplicas != nil {
		t.Errorf("status after the failure: %+v", s)
	}
}

func TestNothingIsWrittenAtRest(t *testing.T) {
	t.Parallel()
	d := newDeployment(3)
	rs := newSet(d, "v1", 3, 3, 1)
	first := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{rs}})
	d.Status, d.Annotations = *first.Status, first.Annotations
	again := Decide(Input{Now: now.Add(time.Hour), Deployment: d, ReplicaSets: sets{rs}})
	if len(again.Writes) > 0 || again.Status != nil || !again.Wake.IsZero() || again.Annotations != nil {
		t.Errorf("second decision %+v", again)
	}
}

func TestStatusAfterFailedWrite(t *testing.T) {
	t.Parallel()
	d := newDeployment(3)
	rs := newSet(d, "v1", 3, 0, 1)
	foreign := rs.DeepCopy()
	foreign.OwnerReferences[0].UID = "other"
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "replicasets"}, rs.Name)
	terminating := apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	quota := errors.New("quota exceeded")
	for _, c := range []struct {
		name      string
		verb      workloads.Verb
		err       error
		sets      sets
		deadline  int32
		condition string
		collision int32
	}{
		{
			name: "creation", verb: workloads.Create, err: quota, deadline: 600,
			condition: "False ReplicaSetCreateError " +
				fmt.Sprintf("Failed to create new replica set %q: quota exceeded", rs.Name),
		},
		{name: "creation without a deadline", verb: workloads.Create, err: quota},
		{name: "update", verb: workloads.Update, err: quota, deadline: 600},
		{name: "terminating namespace", verb: workloads.Create, err: terminating, deadline: 600},
		{
			name: "name of another owner", verb: workloads.Create, err: exists, sets: sets{foreign}, deadline: 600,
			collision: 1,
		},
		{name: "exists but is not observed", verb: workloads.Create, err: exists, deadline: 600},
		{name: "exists as own", verb: workloads.Create, err: exists, sets: sets{rs}, deadline: 600},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := Decide(Input{
				Now: now, Deployment: newDeployment(3, deadline(c.deadline)), ReplicaSets: c.sets,
				WriteError: &workloads.WriteError{Write: workloads.Write{Verb: c.verb, Object: rs}, Err: c.err},
			})
			if len(out.Writes) > 0 || (out.Status == nil) != (c.condition == "" && c.collision == 0) {
				t.Fatalf("decision %+v", out)
			}
			if out.Status == nil {
				return
			}
			got := show(findCondition(out.Status.Conditions, appsv1.DeploymentProgressing))
			collisions := int32(0)
			if out.Status.CollisionCount != nil {
				collisions = *out.Status.CollisionCount
			}
			if got != c.condition || collisions != c.collision {
				t.Errorf("condition %q, collisions %d", got, collisions)
			}
		})
	}
}
