package replicaset

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
	wt "berth/workloads/workloadstest"
)

// world is a model world with one ReplicaSet, pods of it and of others, kubelets and users.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	s       *wt.Server
	e       *wt.Executor
	quiet   bool // nothing fails and no object is edited
	applied bool // the executor is writing
	touched int  // changes of pods or the set by others since the last observation of everything
	names   int
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	t.Helper()
	w := &world{t: t, rng: rng, s: wt.NewServer(rng, now)}
	set := newSet(int32(rng.IntN(7)))
	set.Spec.MinReadySeconds = int32(rng.IntN(2) * 5)
	set.Finalizers = []string{"test/keep"}
	if _, err := w.s.Create(set); err != nil {
		t.Fatal(err)
	}
	w.s.Reject = w.inspect
	w.e = wt.NewExecutor(w.s, rng)
	w.e.Kill = func() bool { return !w.quiet && rng.IntN(12) == 0 }
	w.s.OnChange = func(_, _ workloads.Object) {
		if !w.applied {
			w.touched++
		}
	}
	return w
}

func (w *world) set() *appsv1.ReplicaSet {
	set, _ := wt.Get[*appsv1.ReplicaSet](w.s, "ns", "web")
	return set
}

// active returns the active pods of the set on the server.
func (w *world) active() (out []*corev1.Pod) {
	for _, pod := range wt.List[*corev1.Pod](w.s) {
		if workloads.Active(pod) && metav1.IsControlledBy(pod, w.set()) && pod.Labels["app"] == "web" {
			out = append(out, pod)
		}
	}
	return out
}

// sync runs the controller once.
func (w *world) sync() {
	w.e.View.Advance(w.rng)
	if w.quiet || w.rng.IntN(3) == 0 {
		w.e.View.CatchUp()
		w.touched = 0
	}
	_, err := wt.Sync(w.e, "ns", "web", func(set *appsv1.ReplicaSet, failed *workloads.WriteError) decision {
		in := Input{Now: w.s.Now, Set: set, Pods: wt.ObservedList[*corev1.Pod](w.e.View), WriteError: failed}
		out := Decide(in)
		if failed == nil {
			w.checkDecision(in, out.Writes)
		}
		w.applied = true
		return out
	})
	w.applied = false
	if w.quiet && err != nil {
		w.t.Errorf("sync failed although nothing interferes: %v", err)
	}
}

// inspect checks a write before it is applied, and lets some fail.
func (w *world) inspect(write workloads.Write) error {
	owner := metav1.GetControllerOf(write.Object)
	if owner != nil && owner.UID != w.set().UID {
		w.t.Errorf("S4: %s of %s, which another owner has", write.Verb, write.Object.GetName())
	}
	if n := len(w.active()); write.Verb == workloads.Create && w.touched == 0 && n >= int(*w.set().Spec.Replicas) {
		w.t.Errorf("S2: a pod is created although %d exist", n)
	}
	if !w.quiet && w.rng.IntN(12) == 0 {
		return errors.New("injected failure")
	}
	return nil
}

// checkDecision checks the invariants about what the controller knew.
func (w *world) checkDecision(in Input, writes []workloads.Write) {
	if in.Set.DeletionTimestamp != nil && len(writes) > 0 {
		w.t.Errorf("S5: %d writes of a deleted set", len(writes))
	}
	var kept []*corev1.Pod
	for _, pod := range in.Pods {
		if workloads.Active(pod) && metav1.IsControlledBy(pod, in.Set) && pod.Labels["app"] == "web" {
			kept = append(kept, pod)
		}
	}
	observed, verbs := len(kept), map[workloads.Verb]int{}
	var deleted []*corev1.Pod
	for _, write := range writes {
		verbs[write.Verb]++
		pod, ok := write.Object.(*corev1.Pod)
		if !ok || write.Verb != workloads.Delete {
			continue
		}
		i := slices.IndexFunc(kept, func(p *corev1.Pod) bool { return p.UID == pod.UID })
		if i < 0 {
			w.t.Errorf("S3: %s is deleted, which is not an active pod of the set", pod.Name)
			return
		}
		kept, deleted = slices.Delete(kept, i, i+1), append(deleted, pod)
	}
	surplus := observed - int(*in.Set.Spec.Replicas)
	if verbs[workloads.Patch] == 0 && in.Set.DeletionTimestamp == nil &&
		(verbs[workloads.Create] != max(0, -surplus) || verbs[workloads.Delete] != max(0, surplus)) {
		w.t.Errorf("S1: %d created and %d deleted, surplus %d", verbs[workloads.Create], verbs[workloads.Delete],
			surplus)
	}
	// Of pods whose ages differ little, the order depends on the UID: it is not transitive, as upstream's.
	for _, d := range deleted {
		for _, k := range kept {
			if (d.Spec.NodeName != "") && k.Spec.NodeName == "" || workloads.PhaseRank(d) > workloads.PhaseRank(k) {
				w.t.Errorf("S3: %s is deleted before %s", d.Name, k.Name)
			}
		}
	}
}

func (w *world) editPod(pod *corev1.Pod, change func(*corev1.Pod)) {
	if err := wt.Edit(w.s, pod.Namespace, pod.Name, change); err != nil {
		w.t.Fatal(err)
	}
}

// runPods is the scheduler and the kubelets.
func (w *world) runPods() {
	for _, pod := range wt.List[*corev1.Pod](w.s) {
		switch {
		case !w.quiet && w.rng.IntN(3) == 0:
		case pod.DeletionTimestamp != nil:
			w.s.FinishPod(pod.Namespace, pod.Name)
		case workloads.Terminated(pod):
			_ = w.s.Delete(pod) // the pod garbage collector
		case pod.Spec.NodeName == "":
			w.editPod(pod, onNode(fmt.Sprint("node-", w.rng.IntN(3))))
		case !w.quiet && w.rng.IntN(12) == 0:
			w.editPod(pod, inPhase(corev1.PodFailed))
		case workloads.ReadySince(pod) == nil:
			w.editPod(pod, func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = runningPod("").Status.Conditions
				p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.s.Now)
			})
		}
	}
}

// editAsUser makes one edit of a user.
func (w *world) editAsUser() {
	pods := wt.List[*corev1.Pod](w.s)
	w.names++
	name := fmt.Sprint("other-", w.names)
	switch n := w.rng.IntN(7); {
	case n < 2:
		replicas := int32(w.rng.IntN(7))
		if err := wt.Edit(w.s, "ns", "web", func(s *appsv1.ReplicaSet) { s.Spec.Replicas = &replicas }); err != nil {
			w.t.Fatal(err)
		}
	case n == 2:
		_, _ = w.s.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{"app": "web"}}})
	case n == 3:
		_, _ = w.s.Create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{"app": "web"}, OwnerReferences: []metav1.OwnerReference{
				{Name: "other", UID: "uid-of-other", Controller: new(true)}}}})
	case len(pods) == 0:
	case n == 4:
		_ = w.s.Delete(pods[w.rng.IntN(len(pods))]) // it exists
	case n == 5:
		w.editPod(pods[w.rng.IntN(len(pods))], func(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} })
	default:
		w.editPod(pods[w.rng.IntN(len(pods))], func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} })
	}
}

// settle ends all interference, lets the world come to rest, and checks what it comes to (S6).
func (w *world) settle() {
	w.quiet = true
	for range 60 {
		w.sync()
		w.runPods()
		w.s.Now = w.s.Now.Add(time.Second)
	}
	set, pods := w.set(), w.active()
	n := int32(len(pods))
	if n != *set.Spec.Replicas {
		w.t.Errorf("S6: %d pods, want %d", n, *set.Spec.Replicas)
	}
	labeled := int32(0)
	for _, pod := range wt.List[*corev1.Pod](w.s) {
		ref, matches := metav1.GetControllerOf(pod), pod.Labels["app"] == "web"
		if ref == nil && matches || ref != nil && ref.UID == set.UID && !matches {
			w.t.Errorf("S6: pod %s has labels %v and controller %v", pod.Name, pod.Labels, ref)
		}
		if ref != nil && ref.UID == set.UID && pod.Labels["tier"] == "front" {
			labeled++
		}
	}
	want := appsv1.ReplicaSetStatus{
		Replicas: n, FullyLabeledReplicas: labeled, ReadyReplicas: n, AvailableReplicas: n,
		TerminatingReplicas: new(int32), ObservedGeneration: set.Generation,
	}
	if !equality.Semantic.DeepEqual(want, set.Status) {
		w.t.Errorf("S6: got status %+v, want %+v", set.Status, want)
	}
}

// checkDeleted deletes the set, which its finalizer keeps, and lets the world go on.
func (w *world) checkDeleted() {
	w.quiet = false
	if err := w.s.Delete(w.set()); err != nil {
		w.t.Fatal(err)
	}
	w.e.View.CatchUp()
	for range 20 {
		w.editAsUser()
		w.sync()
		w.runPods()
	}
}

func TestModelWorld(t *testing.T) {
	t.Parallel()
	wt.RunSeeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		t.Helper()
		w := newWorld(t, rng)
		for range 150 {
			switch n := rng.IntN(10); {
			case n < 4:
				w.sync()
			case n < 7:
				w.runPods()
			case n < 8:
				w.s.Now = w.s.Now.Add(time.Duration(rng.IntN(8000)) * time.Millisecond)
			default:
				w.editAsUser()
			}
			if t.Failed() {
				return
			}
		}
		w.settle()
		w.checkDeleted()
	})
}
