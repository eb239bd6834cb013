package deployment

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

func TestNewReplicaSet(t *testing.T) {
	t.Parallel()
	d := newDeployment(3, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{
			"team": "a", corev1.LastAppliedConfigAnnotation: "{}", RevisionAnnotation: "7",
			appsv1.DeprecatedRollbackTo: "1",
		}
		d.Spec.MinReadySeconds = 5
	})
	before := d.DeepCopy()
	old := newSet(d, "v0", 0, 0, 4)
	out := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{old}})
	if len(out.Writes) != 1 || out.Writes[0].Verb != workloads.Create {
		t.Fatalf("writes %+v", out.Writes)
	}
	rs, _ := out.Writes[0].Object.(*appsv1.ReplicaSet)
	hash := workloads.Hash(d.Spec.Template, nil)
	labels := map[string]string{"app": "web", "pod-template-hash": hash}
	if rs.Name != "web-"+hash || rs.Namespace != "ns" || !maps.Equal(rs.Labels, labels) ||
		!maps.Equal(rs.Spec.Template.Labels, labels) || !maps.Equal(rs.Spec.Selector.MatchLabels, labels) {
		t.Errorf("ReplicaSet %+v", rs)
	}
	want := map[string]string{
		"team": "a", RevisionAnnotation: "5", desiredReplicasAnnotation: "3", maxReplicasAnnotation: "4",
	}
	if !maps.Equal(rs.Annotations, want) {
		t.Errorf("annotations %v, want %v", rs.Annotations, want)
	}
	owner := metav1.GetControllerOf(rs)
	if owner == nil || owner.APIVersion != "apps/v1" || owner.Kind != "Deployment" || owner.UID != d.UID ||
		!*owner.BlockOwnerDeletion || *rs.Spec.Replicas != 3 || rs.Spec.MinReadySeconds != 5 {
		t.Errorf("owner %+v, spec %+v", owner, rs.Spec)
	}
	if !maps.Equal(out.Annotations, map[string]string{RevisionAnnotation: "5"}) {
		t.Errorf("annotations of the Deployment: %v", out.Annotations)
	}
	success := workloads.Event{
		Type: "Normal", Reason: "ScalingReplicaSet",
		Message: fmt.Sprintf("Scaled up replica set %s from 0 to 3", rs.Name),
	}
	failure := workloads.Event{
		Type: "Warning", Reason: "ReplicaSetCreateError",
		Message: fmt.Sprintf("Failed to create new replica set %q: ", rs.Name) + "%s",
	}
	if out.Writes[0].Success != success || out.Writes[0].Failure != failure {
		t.Errorf("events %+v", out.Writes[0])
	}
	if !equality.Semantic.DeepEqual(before, d) {
		t.Error("the decision modified its input")
	}
}

func TestReplicaSetNames(t *testing.T) {
	t.Parallel()
	for length, want := range map[int]int{10: 10, 242: 242, 250: 242} {
		name := replicaSetName(strings.Repeat("a", length), "0123456789")
		if name != strings.Repeat("a", want)+"-0123456789" {
			t.Errorf("%d: %s", length, name)
		}
	}
}

func TestRollbackGetsTheNewestRevision(t *testing.T) {
	t.Parallel()
	d := newDeployment(3, func(d *appsv1.Deployment) { d.Annotations = map[string]string{"note": "new"} })
	for _, c := range []struct {
		name              string
		revision, history string
		want, wantHistory string
	}{
		{name: "first return", revision: "1", want: "3", wantHistory: "1"},
		{name: "another return", revision: "1", history: "5,7", want: "3", wantHistory: "5,7,1"},
		{name: "already the newest", revision: "8", history: "1", want: "8", wantHistory: "1"},
		{name: "no revision", want: "3"},
		{name: "not a number", revision: "x", want: "x"},
		{
			name: "a long history loses its oldest", revision: "1", want: "3",
			history: strings.Repeat("1234,", 399) + "1234", wantHistory: strings.Repeat("1234,", 399) + "1",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rs := newSet(d, "v1", 3, 3, 1, annotated(RevisionAnnotation, c.revision),
				annotated(revisionHistoryAnnotation, c.history))
			before := maps.Clone(rs.Annotations)
			out := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{rs, newSet(d, "v2", 0, 0, 2)}})
			got := rs
			if len(out.Writes) > 0 {
				got, _ = out.Writes[0].Object.(*appsv1.ReplicaSet)
			}
			if a := got.Annotations; a[RevisionAnnotation] != c.want || a[revisionHistoryAnnotation] != c.wantHistory ||
				(a["note"] == "new") == (c.want == "x") {
				t.Errorf("annotations %v", a)
			}
			if out.Annotations[RevisionAnnotation] != c.want || !maps.Equal(before, rs.Annotations) {
				t.Errorf("revision of the Deployment %v; observed annotations %v", out.Annotations, rs.Annotations)
			}
		})
	}
}

func TestOnlyOneUpdatePerReplicaSet(t *testing.T) {
	t.Parallel()
	d := newDeployment(3, func(d *appsv1.Deployment) {
		d.Annotations, d.Spec.MinReadySeconds = map[string]string{"note": "new"}, 9
	})
	rs := newSet(d, "v1", 2, 2, 1)
	out := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{rs}})
	if len(out.Writes) != 1 {
		t.Fatalf("writes %+v", out.Writes)
	}
	got, _ := out.Writes[0].Object.(*appsv1.ReplicaSet)
	want := fmt.Sprintf("Scaled up replica set %s from 2 to 3", rs.Name)
	if got.Annotations["note"] != "new" || got.Spec.MinReadySeconds != 9 || out.Writes[0].Success.Message != want {
		t.Errorf("write %+v", out.Writes[0])
	}
}

func TestCollision(t *testing.T) {
	t.Parallel()
	d := newDeployment(3)
	for name, change := range map[string]func(*appsv1.ReplicaSet){
		"another owner":    func(rs *appsv1.ReplicaSet) { rs.OwnerReferences[0].UID = "other" },
		"another template": func(rs *appsv1.ReplicaSet) { rs.Spec.Template.Spec.Containers[0].Image = "v9" },
		"no match":         func(rs *appsv1.ReplicaSet) { rs.Labels, rs.OwnerReferences = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			taken := newSet(d, "v1", 0, 0, 1, change)
			out := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{taken}})
			if len(out.Writes) > 0 || out.Status == nil || *out.Status.CollisionCount != 1 {
				t.Fatalf("decision %+v", out)
			}
			next := d.DeepCopy()
			next.Status = *out.Status
			out = Decide(Input{Now: now, Deployment: next, ReplicaSets: sets{taken}})
			if len(out.Writes) != 1 || out.Writes[0].Object.GetName() == taken.Name {
				t.Errorf("decision with the collision count: %+v", out)
			}
		})
	}
}

func TestSameTemplate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*corev1.PodTemplateSpec)
		want   bool
	}{
		"hash label":    {func(p *corev1.PodTemplateSpec) { p.Labels["pod-template-hash"] = "x" }, true},
		"other label":   {func(p *corev1.PodTemplateSpec) { p.Labels["x"] = "x" }, false},
		"annotation":    {func(p *corev1.PodTemplateSpec) { p.Annotations = map[string]string{"x": "x"} }, false},
		"empty map":     {func(p *corev1.PodTemplateSpec) { p.Annotations = map[string]string{} }, true},
		"specification": {func(p *corev1.PodTemplateSpec) { p.Spec.HostNetwork = true }, false},
	} {
		a, b := template("v1"), template("v1")
		if c.change(&b); sameTemplate(&a, &b) != c.want {
			t.Errorf("%s: want %v", name, c.want)
		}
	}
}

func TestTheOldestReplicaSetOfTheTemplateIsTheNewOne(t *testing.T) {
	t.Parallel()
	d := newDeployment(3)
	older := newSet(d, "v1", 1, 1, 1)
	younger := newSet(d, "v1", 2, 2, 2, func(rs *appsv1.ReplicaSet) { rs.Name, rs.UID = "web-other", "other-uid" })
	r := newRollout(Input{Now: now, Deployment: d}, sets{younger, older})
	if r.newSet.Name != older.Name || len(r.old) != 1 || r.old[0].Name != "web-other" {
		t.Errorf("new %s, old %d", r.newSet.Name, len(r.old))
	}
}

func TestAdoptionAndRelease(t *testing.T) {
	t.Parallel()
	d := newDeployment(3, image("v2"))
	orphan := newSet(d, "v1", 3, 3, 1, func(rs *appsv1.ReplicaSet) { rs.OwnerReferences = nil })
	stray := newSet(d, "v0", 1, 1, 0, func(rs *appsv1.ReplicaSet) { rs.Labels = nil })
	foreign := newSet(d, "v3", 1, 1, 0, func(rs *appsv1.ReplicaSet) { rs.OwnerReferences[0].UID = "other" })
	out := Decide(Input{Now: now, Deployment: d, ReplicaSets: sets{orphan, stray, foreign}})
	names := []string{}
	for _, w := range out.Writes {
		adopted := metav1.IsControlledBy(w.Object, d)
		if w.Verb != workloads.Patch || adopted != w.VerifyOwner || adopted != (w.Object.GetName() == orphan.Name) {
			t.Errorf("write %+v", w)
		}
		names = append(names, w.Object.GetName())
	}
	if want := []string{orphan.Name, stray.Name}; !slices.Equal(names, want) {
		t.Errorf("claims %v, want %v", names, want)
	}
	if out.Status == nil || out.Status.Replicas != 3 {
		t.Errorf("status %+v", out.Status)
	}
}

func TestEmptySelectorIsRefused(t *testing.T) {
	t.Parallel()
	d := newDeployment(3, func(d *appsv1.Deployment) { d.Spec.Selector, d.Generation = &metav1.LabelSelector{}, 2 })
	out := Decide(Input{Now: now, Deployment: d})
	if len(out.Writes) > 0 || len(out.Events) != 1 || out.Events[0].Reason != "SelectingAll" ||
		out.Status.ObservedGeneration != 2 {
		t.Errorf("decision %+v", out)
	}
}
