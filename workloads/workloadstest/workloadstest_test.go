package workloadstest

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newServer() *Server { return NewServer(rand.New(rand.NewPCG(1, 0)), start) }

func mustCreate[T workloads.Object](t *testing.T, s *Server, o T) T {
	t.Helper()
	out, err := s.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	return as[T](out)
}

func pod(name, node string, finalizers ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Finalizers: finalizers},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func replicaSet(name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
}

func TestServerChecksNamesUIDsAndVersions(t *testing.T) {
	t.Parallel()
	s := newServer()
	rs := mustCreate(t, s, replicaSet("a"))
	if _, err := s.Create(replicaSet("a")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	generated := mustCreate(t, s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}})
	if len(generated.Name) != len("p-xxxxx") || generated.Status.Phase != corev1.PodPending {
		t.Errorf("generated pod %q in phase %q", generated.Name, generated.Status.Phase)
	}
	changed := clone(rs)
	changed.Spec.MinReadySeconds = 5
	changed.Status.Replicas = 7
	if err := s.Update(changed); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(changed); !apierrors.IsConflict(err) {
		t.Errorf("update with an old version: %v", err)
	}
	if now, _ := Get[*appsv1.ReplicaSet](s, "ns", "a"); now.Generation != 2 || now.Status.Replicas != 0 {
		t.Errorf("generation %d, status %v after an update", now.Generation, now.Status)
	}
	other := clone(rs)
	other.UID = "other"
	if err := s.Delete(other); !apierrors.IsConflict(err) {
		t.Errorf("delete with another UID: %v", err)
	}
}

func TestServerDeletesGracefully(t *testing.T) {
	t.Parallel()
	s := newServer()
	for name, p := range map[string]*corev1.Pod{
		"pending": pod("pending", ""), "running": pod("running", "node"), "final": pod("final", "", "example.com/f"),
	} {
		if err := s.Delete(mustCreate(t, s, p)); err != nil {
			t.Fatal(err)
		}
		left, found := Get[*corev1.Pod](s, "ns", name)
		if found == (name == "pending") || found && left.DeletionTimestamp == nil {
			t.Errorf("pod %s after its deletion: found %v, %+v", name, found, left)
		}
	}
	s.FinishPod("ns", "running")
	if err := Edit(s, "ns", "final", func(p *corev1.Pod) { p.Finalizers = nil }); err != nil {
		t.Fatal(err)
	}
	if left := List[*corev1.Pod](s); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestPatchChangesOnlyDifferences(t *testing.T) {
	t.Parallel()
	s := newServer()
	base := replicaSet("a")
	base.Labels = map[string]string{"a": "1", "b": "1", "c": "1"}
	base = mustCreate(t, s, base)
	if err := Edit(s, "ns", "a", func(rs *appsv1.ReplicaSet) { rs.Labels["c"] = "2" }); err != nil {
		t.Fatal(err)
	}
	changed := clone(base)
	changed.Labels = map[string]string{"a": "3", "c": "1"}
	write := workloads.Write{Verb: workloads.Patch, Base: base, Object: changed}
	if _, err := s.Apply(Key{}, "", write); err != nil {
		t.Fatal(err)
	}
	now, _ := Get[*appsv1.ReplicaSet](s, "ns", "a")
	if l := now.Labels; len(l) != 2 || l["a"] != "3" || l["c"] != "2" {
		t.Errorf("labels after the patch: %v", l)
	}
	write.IfUnchanged = true
	if _, err := s.Apply(Key{}, "", write); !apierrors.IsConflict(err) {
		t.Errorf("patch of a changed object: %v", err)
	}
	write.IfUnchanged, write.VerifyOwner = false, true
	if _, err := s.Apply(Key{"Deployment", "ns", "gone"}, "uid", write); err == nil {
		t.Error("the write succeeded although its owner is gone")
	}
}

// createPods decides that a ReplicaSet has two pods more, and breaks off if it sees some of an earlier decision.
func createPods(v *View) func(*appsv1.ReplicaSet, *workloads.WriteError) workloads.Decision[appsv1.ReplicaSetStatus] {
	return func(rs *appsv1.ReplicaSet, _ *workloads.WriteError) workloads.Decision[appsv1.ReplicaSetStatus] {
		n := int32(len(ObservedList[*corev1.Pod](v)))
		d := workloads.Decision[appsv1.ReplicaSetStatus]{Status: &appsv1.ReplicaSetStatus{Replicas: n}}
		for range 2 {
			p := pod("", "")
			p.GenerateName = rs.Name + "-"
			d.Writes = append(d.Writes, workloads.Write{
				Verb: workloads.Create, Object: p, Success: workloads.Event{Reason: "Created", Message: "created %s"},
			})
		}
		return d
	}
}

func TestViewLagsButHasOwnWrites(t *testing.T) {
	t.Parallel()
	s := newServer()
	mustCreate(t, s, replicaSet("a"))
	e := NewExecutor(s, s.rand)
	mustCreate(t, s, pod("foreign", ""))
	if n := len(ObservedList[*corev1.Pod](e.View)); n != 0 {
		t.Errorf("the view has %d pods before it advances", n)
	}
	for i, want := range []int32{0, 3} {
		if _, err := Sync(e, "ns", "a", createPods(e.View)); err != nil && i == 0 {
			t.Fatal(err)
		}
		e.View.CatchUp()
		if rs, _ := Get[*appsv1.ReplicaSet](s, "ns", "a"); rs.Status.Replicas != want {
			t.Errorf("sync %d counted %d pods, want %d", i, rs.Status.Replicas, want)
		}
	}
	if len(s.Events) != 4 {
		t.Errorf("events: %v", s.Events)
	}
}

func TestExecutorIsKilledBetweenWrites(t *testing.T) {
	t.Parallel()
	for kills := range 4 {
		s := newServer()
		mustCreate(t, s, replicaSet("a"))
		e := NewExecutor(s, s.rand)
		asked := 0
		e.Kill = func() bool { asked++; return asked == kills+1 }
		_, err := Sync(e, "ns", "a", createPods(e.View))
		if !errors.Is(err, ErrKilled) {
			t.Errorf("killed at %d: %v", kills, err)
		}
		if n := len(ObservedList[*corev1.Pod](e.View)); n != min(kills, 2) {
			t.Errorf("killed at %d: the view has %d pods after the restart", kills, n)
		}
	}
}

func TestExecutorReportsWriteErrorOnce(t *testing.T) {
	t.Parallel()
	s := newServer()
	mustCreate(t, s, replicaSet("a"))
	rejected := errors.New("quota exceeded")
	s.Reject = func(workloads.Write) error { return rejected }
	e := NewExecutor(s, s.rand)
	var got []*workloads.WriteError
	_, err := Sync(e, "ns", "a", func(rs *appsv1.ReplicaSet,
		failed *workloads.WriteError) workloads.Decision[appsv1.ReplicaSetStatus] {
		got = append(got, failed)
		return createPods(e.View)(rs, failed)
	})
	if !errors.Is(err, rejected) || len(got) != 2 || got[0] != nil || !errors.Is(got[1], rejected) {
		t.Errorf("error %v, decisions with %v", err, got)
	}
}
