package replicaset

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

func newSet(replicas int32) *appsv1.ReplicaSet {
	app := map[string]string{"app": "web"}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "set-uid", Generation: 3},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"app": "web", "tier": "front"},
			}},
		},
	}
}

// own makes a pod one of newSet.
func own(p *corev1.Pod) {
	p.Labels = map[string]string{"app": "web", "tier": "front"}
	p.OwnerReferences = []metav1.OwnerReference{workloads.ControllerRef(newSet(0), Kind)}
}

func orphan(p *corev1.Pod) { own(p); p.OwnerReferences = nil }

func relabeled(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} }

func deleting(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

// summary returns the verbs and names of writes, "create" without a name.
func summary(writes []workloads.Write) string {
	out := make([]string, 0, len(writes))
	for _, w := range writes {
		out = append(out, strings.TrimSpace(w.Verb.String()+" "+w.Object.GetName()))
	}
	return strings.Join(out, ", ")
}

func counts(s *appsv1.ReplicaSetStatus) string {
	return fmt.Sprint(s.Replicas, s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas, *s.TerminatingReplicas)
}

// TestDecide: counts are replicas, fully labeled, ready, available and terminating ones.
func TestDecide(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		replicas           int32
		pods               []*corev1.Pod
		change             func(*appsv1.ReplicaSet)
		wantWrites, counts string
		wake               time.Time
	}{
		"creates missing pods": {
			replicas: 3, pods: []*corev1.Pod{runningPod("a", own)}, wantWrites: "create, create", counts: "1 1 1 1 0",
		},
		"deletes surplus pods by rank": {
			replicas: 1, pods: []*corev1.Pod{
				runningPod("a", own), runningPod("b", own, unready), runningPod("c", own, cost("1")),
			},
			wantWrites: "delete b, delete a", counts: "3 3 2 2 0",
		},
		"deletes all pods": {
			replicas: 0, pods: []*corev1.Pod{runningPod("a", own), runningPod("b", own, unready)},
			wantWrites: "delete a, delete b", counts: "2 2 1 1 0",
		},
		"replaces terminated and terminating pods": {
			replicas: 2, pods: []*corev1.Pod{
				runningPod("a", own, inPhase(corev1.PodFailed)), runningPod("b", own, inPhase(corev1.PodSucceeded)),
				runningPod("c", own, deleting), runningPod("d", own, deleting, inPhase(corev1.PodFailed)),
			},
			wantWrites: "create, create", counts: "0 0 0 0 1",
		},
		"adopts active orphans first": {
			replicas: 3, pods: []*corev1.Pod{runningPod("a", own), runningPod("b", orphan)},
			wantWrites: "patch b", counts: "2 2 2 2 0",
		},
		"leaves orphans that are not active": {
			replicas: 0, pods: []*corev1.Pod{
				runningPod("a", orphan, inPhase(corev1.PodFailed)), runningPod("b", orphan, deleting),
				runningPod("c", orphan, relabeled),
			},
			counts: "0 0 0 0 0",
		},
		"releases active pods that no longer match": {
			replicas: 2, pods: []*corev1.Pod{
				runningPod("a", own, relabeled), runningPod("b", own),
				runningPod("c", own, relabeled, inPhase(corev1.PodFailed)),
				runningPod("d", own, relabeled, deleting),
			},
			wantWrites: "patch a", counts: "1 1 1 1 0",
		},
		"a deleted set changes nothing": {
			replicas: 1, change: func(s *appsv1.ReplicaSet) { s.DeletionTimestamp = &metav1.Time{Time: now} },
			pods: []*corev1.Pod{
				runningPod("a", own), runningPod("b", own), runningPod("c", orphan), runningPod("d", own, relabeled),
			},
			counts: "2 2 2 2 0",
		},
		"counts labels of the template": {
			replicas: 1, pods: []*corev1.Pod{runningPod("a", own, func(p *corev1.Pod) { delete(p.Labels, "tier") })},
			counts: "1 0 1 1 0",
		},
		"wakes when the next pod becomes available": {
			replicas: 3, change: func(s *appsv1.ReplicaSet) { s.Spec.MinReadySeconds = 30 },
			pods: []*corev1.Pod{
				runningPod("a", own, readyFor(10*time.Second)), runningPod("b", own, readyFor(20*time.Second)),
				runningPod("c", own),
			},
			counts: "3 3 3 1 0", wake: now.Add(10 * time.Second),
		},
		"drops a former failure and keeps other conditions": {
			replicas: 0, counts: "0 0 0 0 0",
			change: func(s *appsv1.ReplicaSet) {
				s.Status.Conditions = []appsv1.ReplicaSetCondition{
					{Type: appsv1.ReplicaSetReplicaFailure}, {Type: "Mine"},
				}
			},
		},
	}
	for name, row := range rows {
		set := newSet(row.replicas)
		if row.change != nil {
			row.change(set)
		}
		d := Decide(Input{Now: now, Set: set, Pods: row.pods})
		if got := summary(d.Writes); got != row.wantWrites {
			t.Errorf("%s: got writes %q, want %q", name, got, row.wantWrites)
		}
		if got := counts(d.Status); got != row.counts || d.Status.ObservedGeneration != 3 || !d.Wake.Equal(row.wake) {
			t.Errorf("%s: got status %s, wake %s, want %s, %s", name, got, d.Wake, row.counts, row.wake)
		}
		if slices.ContainsFunc(d.Status.Conditions, isFailure) ||
			len(d.Status.Conditions) != max(0, len(set.Status.Conditions)-1) {
			t.Errorf("%s: got conditions %+v", name, d.Status.Conditions)
		}
	}
}

// TestCreatedPod checks the pod and the events of a creation, for both kinds.
func TestCreatedPod(t *testing.T) {
	t.Parallel()
	set := newSet(1)
	rc := &corev1.ReplicationController{ObjectMeta: set.ObjectMeta, Spec: corev1.ReplicationControllerSpec{
		Replicas: set.Spec.Replicas, Selector: set.Spec.Selector.MatchLabels, Template: &set.Spec.Template,
	}}
	for kind, writes := range map[string][]workloads.Write{
		"apps/v1 ReplicaSet":       Decide(Input{Now: now, Set: set}).Writes,
		"v1 ReplicationController": DecideController(ControllerInput{Now: now, Controller: rc}).Writes,
	} {
		if len(writes) != 1 {
			t.Fatalf("%s: got %d writes", kind, len(writes))
		}
		w := writes[0]
		ref := metav1.GetControllerOf(w.Object)
		if ref == nil || ref.APIVersion+" "+ref.Kind != kind || w.Object.GetGenerateName() != "web-" ||
			w.Object.GetLabels()["tier"] != "front" {
			t.Errorf("%s: got pod %+v", kind, w.Object)
		}
		if w.Success.Reason != "SuccessfulCreate" || w.Failure.Reason != "FailedCreate" {
			t.Errorf("%s: got events %+v, %+v", kind, w.Success, w.Failure)
		}
	}
}

// TestFailedWriteSetsCondition: only failures to create or delete pods are reported, and the first stays.
func TestFailedWriteSetsCondition(t *testing.T) {
	t.Parallel()
	old := appsv1.ReplicaSetCondition{Type: appsv1.ReplicaSetReplicaFailure, Message: "old"}
	rows := map[string]struct {
		verb       workloads.Verb
		replicas   int32
		conditions []appsv1.ReplicaSetCondition
		want       string // reason and message
	}{
		"creation": {verb: workloads.Create, replicas: 3, want: "FailedCreate quota is full"},
		"deletion": {
			verb: workloads.Delete, replicas: 0, want: "FailedDelete unable to delete pods: quota is full",
		},
		"failed before": {
			verb: workloads.Create, replicas: 3, conditions: []appsv1.ReplicaSetCondition{old}, want: " old",
		},
		"adoption":       {verb: workloads.Patch, replicas: 3},
		"all pods exist": {verb: workloads.Create, replicas: 1, want: " quota is full"},
		"other condition": {
			verb: workloads.Create, replicas: 2, want: "FailedCreate quota is full",
			conditions: []appsv1.ReplicaSetCondition{{Type: "x"}},
		},
	}
	for name, row := range rows {
		set := newSet(row.replicas)
		set.Status.Conditions = row.conditions
		d := Decide(Input{
			Now: now, Set: set, Pods: []*corev1.Pod{runningPod("a", own)},
			WriteError: &workloads.WriteError{Write: workloads.Write{Verb: row.verb}, Err: errors.New("quota is full")},
		})
		got := ""
		if d.Status != nil {
			i := slices.IndexFunc(d.Status.Conditions, isFailure)
			got = d.Status.Conditions[i].Reason + " " + d.Status.Conditions[i].Message
		}
		if got != row.want || len(d.Writes) > 0 {
			t.Errorf("%s: got %q, %d writes, want %q", name, got, len(d.Writes), row.want)
		}
	}
}

// TestTruncatedSyncSetsStatus: the status after the writes of one sync counts the observed pods and has no failure.
func TestTruncatedSyncSetsStatus(t *testing.T) {
	t.Parallel()
	set := newSet(5000)
	set.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure}}
	d := Decide(Input{
		Now: now, Set: set, Pods: []*corev1.Pod{runningPod("a", own)}, WriteError: &workloads.WriteError{
			Write: workloads.Write{Verb: workloads.Create}, Err: workloads.ErrTruncated,
		},
	})
	if len(d.Writes) > 0 || d.Status == nil || counts(d.Status) != "1 1 1 1 0" ||
		d.Status.ObservedGeneration != set.Generation || len(d.Status.Conditions) > 0 {
		t.Errorf("got %d writes and status %+v", len(d.Writes), d.Status)
	}
}

// TestControllerStatus converts all fields and conditions in both directions.
func TestControllerStatus(t *testing.T) {
	t.Parallel()
	rc := &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "set-uid", Generation: 5},
		Spec: corev1.ReplicationControllerSpec{
			Replicas: new(int32(2)), Selector: map[string]string{"app": "web"}, MinReadySeconds: 1,
			Template: &newSet(0).Spec.Template,
		},
		Status: corev1.ReplicationControllerStatus{Conditions: []corev1.ReplicationControllerCondition{{
			Type: "Mine", Status: corev1.ConditionFalse, Reason: "R", Message: "M", LastTransitionTime: ago(time.Hour),
		}}},
	}
	d := DecideController(ControllerInput{Now: now, Controller: rc, Pods: []*corev1.Pod{
		runningPod("a", own), runningPod("b", own, unready), runningPod("c", own, deleting),
	}})
	s := d.Status
	if s.Replicas != 2 || s.FullyLabeledReplicas != 2 || s.ReadyReplicas != 1 || s.AvailableReplicas != 1 ||
		s.ObservedGeneration != 5 || len(s.Conditions) != 1 || s.Conditions[0] != rc.Status.Conditions[0] {
		t.Errorf("got %+v", s)
	}
}
