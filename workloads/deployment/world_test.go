package deployment

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/workloads"
	wt "berth/workloads/workloadstest"
)

// world is a model world with one Deployment, its ReplicaSets, and pods. The ReplicaSet controller, kubelets and users
// are part of it.
type world struct {
	t   *testing.T
	rng *rand.Rand
	s   *wt.Server
	e   *wt.Executor
	// calm worlds have no failing pods, no change of the number of replicas, and prompt watches: there the pods
	// themselves must stay available, not only what the controller observed.
	calm    bool
	reached bool // all replicas have been available
	quiet   bool // nothing fails and no object is edited
	failing bool // the ReplicaSet controller reports that it cannot create pods

	decided Input // of the last decision
	mixed   bool  // the last decision both adds and removes replicas
	created map[types.UID]bool
	foreign map[types.UID]bool
	images  int
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	t.Helper()
	w := &world{
		t: t, rng: rng, s: wt.NewServer(rng, now), calm: rng.IntN(3) == 0,
		created: map[types.UID]bool{}, foreign: map[types.UID]bool{},
	}
	w.s.OnChange = w.changed
	w.s.Reject = w.inspect
	d := newDeployment(int32(1+rng.IntN(8)), w.randomStrategy)
	d.Spec.RevisionHistoryLimit = new(int32(rng.IntN(4)))
	d.Spec.MinReadySeconds = int32(rng.IntN(2) * 5)
	if _, err := w.s.Create(d); err != nil {
		t.Fatal(err)
	}
	w.e = wt.NewExecutor(w.s, rng)
	w.e.Kill = func() bool { return !w.quiet && rng.IntN(12) == 0 }
	return w
}

func (w *world) randomStrategy(d *appsv1.Deployment) {
	if !w.calm && w.rng.IntN(4) == 0 {
		recreating(d)
		return
	}
	surge, unavailable := intstr.FromInt32(int32(w.rng.IntN(3))), intstr.FromInt32(int32(w.rng.IntN(3)))
	if w.rng.IntN(3) == 0 {
		surge, unavailable = intstr.FromString("30%"), intstr.FromString("30%")
	}
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
	}
}

func (w *world) errorf(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf(format, args...)
}

func (w *world) deployment() *appsv1.Deployment {
	d, _ := wt.Get[*appsv1.Deployment](w.s, "ns", "web")
	return d
}

func (w *world) edit(change func(*appsv1.Deployment)) {
	if err := wt.Edit(w.s, "ns", "web", change); err != nil {
		w.t.Fatal(err)
	}
}

// owned returns the ReplicaSets that the Deployment controls.
func (w *world) owned() (out []*appsv1.ReplicaSet) {
	for _, rs := range wt.List[*appsv1.ReplicaSet](w.s) {
		if metav1.IsControlledBy(rs, w.deployment()) {
			out = append(out, rs)
		}
	}
	return out
}

// sync runs the controller once.
func (w *world) sync() {
	if w.rng.IntN(2) == 0 {
		w.e.View.Advance(w.rng)
	}
	if w.calm {
		for _, rs := range wt.List[*appsv1.ReplicaSet](w.s) {
			w.reportStatus(rs)
		}
	}
	if w.calm || w.quiet {
		w.e.View.CatchUp()
	}
	_, err := wt.Sync(w.e, "ns", "web", func(d *appsv1.Deployment, failed *workloads.WriteError) decision {
		w.decided = Input{
			Now: w.s.Now, Deployment: d, WriteError: failed,
			ReplicaSets: wt.ObservedList[*appsv1.ReplicaSet](w.e.View), Pods: wt.ObservedList[*corev1.Pod](w.e.View),
		}
		out := Decide(w.decided)
		if failed == nil {
			w.checkDecision(out)
		}
		return out
	})
	if w.quiet && err != nil {
		w.errorf("sync failed although nothing interferes: %v", err)
	}
}

// inspect checks a write before it is applied, and lets some fail.
func (w *world) inspect(write workloads.Write) error {
	if w.foreign[write.Object.GetUID()] {
		w.errorf("D7: %d of %s, which another owner has", write.Verb, write.Object.GetName())
	}
	if rs, ok := write.Object.(*appsv1.ReplicaSet); ok && write.Verb == workloads.Create {
		for _, other := range w.owned() {
			if w.created[other.UID] && sameTemplate(&other.Spec.Template, &rs.Spec.Template) {
				w.errorf("D3: %s is created, but %s has its template", rs.Name, other.Name)
			}
		}
	}
	if !w.quiet && w.rng.IntN(12) == 0 {
		return errors.New("injected failure")
	}
	return nil
}

// checkDecision checks the invariants about what the controller knew.
func (w *world) checkDecision(out decision) {
	d := w.decided.Deployment
	next := map[string]*appsv1.ReplicaSet{}
	for _, rs := range w.decided.ReplicaSets {
		if metav1.IsControlledBy(rs, d) {
			next[rs.Name] = rs
		}
	}
	before := slices.Collect(maps.Values(next))
	for _, write := range out.Writes {
		rs, ok := write.Object.(*appsv1.ReplicaSet)
		switch {
		case !ok:
			w.errorf("write of a %T", write.Object)
		case write.Verb == workloads.Delete:
			w.checkDeletion(rs, before)
			delete(next, rs.Name)
		default:
			next[rs.Name] = rs
		}
	}
	w.checkTotal(next)
	if !isRollingUpdate(d) || len(before) == 0 {
		return
	}
	// D2: decisions keep the minimum. A change of the size may lower it to the proportion.
	available := func(sets []*appsv1.ReplicaSet, sizes map[string]*appsv1.ReplicaSet) (n int32) {
		for _, rs := range sets {
			if now := sizes[rs.Name]; now != nil {
				n += min(rs.Status.AvailableReplicas, *rs.Spec.Replicas, *now.Spec.Replicas)
			}
		}
		return n
	}
	same := map[string]*appsv1.ReplicaSet{}
	scaled := false
	for _, rs := range before {
		same[rs.Name] = rs
		n, ok := annotatedNumber(&replicaSet{ReplicaSet: *rs}, desiredReplicasAnnotation)
		scaled = scaled || ok && *rs.Spec.Replicas > 0 && n != *d.Spec.Replicas
	}
	minimum := *d.Spec.Replicas - maxUnavailable(d)
	was, is := available(before, same), available(before, next)
	if !scaled && !d.Spec.Paused && is < min(was, minimum) {
		w.errorf("D2: %d available replicas become %d, below %d", was, is, minimum)
	}
}

// checkTotal checks the sizes that a decision leads to.
func (w *world) checkTotal(next map[string]*appsv1.ReplicaSet) {
	was := map[string]int32{}
	for _, rs := range w.decided.ReplicaSets {
		was[rs.Name] = *rs.Spec.Replicas
	}
	adds, removes, sum := false, false, int32(0)
	for _, rs := range next {
		n := *rs.Spec.Replicas
		adds, removes, sum = adds || n > was[rs.Name], removes || n < was[rs.Name], sum+n
	}
	d := w.decided.Deployment
	if limit := *d.Spec.Replicas + maxSurge(d); adds && sum > limit {
		w.errorf("D1: a decision leads to %d replicas, above %d", sum, limit)
	}
	w.mixed = adds && removes
}

func (w *world) checkDeletion(rs *appsv1.ReplicaSet, observed []*appsv1.ReplicaSet) {
	d := w.decided.Deployment
	higher := 0
	for _, other := range observed {
		if other.UID != rs.UID && other.DeletionTimestamp == nil &&
			!sameTemplate(&other.Spec.Template, &d.Spec.Template) &&
			revisionOf(&replicaSet{ReplicaSet: *other}) >= revisionOf(&replicaSet{ReplicaSet: *rs}) {
			higher++
		}
	}
	if *rs.Spec.Replicas > 0 || sameTemplate(&rs.Spec.Template, &d.Spec.Template) ||
		higher < int(*d.Spec.RevisionHistoryLimit) {
		w.errorf("D5: %s is deleted with %d replicas, revision %s, %d above it, limit %d", rs.Name, *rs.Spec.Replicas,
			rs.Annotations[RevisionAnnotation], higher, *d.Spec.RevisionHistoryLimit)
	}
}

// changed checks the invariants about what happens.
func (w *world) changed(old, current workloads.Object) {
	switch now := current.(type) {
	case *appsv1.ReplicaSet:
		before, _ := old.(*appsv1.ReplicaSet)
		if w.decided.Deployment != nil && metav1.IsControlledBy(now, w.decided.Deployment) {
			w.replicaSetChanged(before, now)
		}
	case *corev1.Pod:
		if old == nil && w.decided.Deployment != nil && !isRollingUpdate(w.deployment()) {
			w.podCreated(now)
		}
		if w.calm && old != nil {
			w.checkAvailable()
		}
	}
}

func (w *world) replicaSetChanged(before, now *appsv1.ReplicaSet) {
	if before == nil {
		w.created[now.UID] = true
	}
	size := int32(0)
	if before != nil {
		size = *before.Spec.Replicas
	}
	if *now.Spec.Replicas > size {
		sum := int32(0)
		for _, rs := range w.owned() {
			sum += *rs.Spec.Replicas
		}
		d := w.decided.Deployment
		if limit := *d.Spec.Replicas + maxSurge(d); sum > limit && !w.mixed {
			w.errorf("D1: %s is scaled up to %d: %d in all, above %d", now.Name, *now.Spec.Replicas, sum, limit)
		}
	}
	revision := now.Annotations[RevisionAnnotation]
	if before != nil && before.Annotations[RevisionAnnotation] == revision {
		return
	}
	for _, other := range w.owned() {
		n := &replicaSet{ReplicaSet: *now}
		if other.UID != now.UID && revisionOf(&replicaSet{ReplicaSet: *other}) >= revisionOf(n) {
			w.errorf("D4: %s gets revision %s, %s has %s", now.Name, revision, other.Name,
				other.Annotations[RevisionAnnotation])
		}
	}
}

// podCreated checks Recreate: a pod of the newest ReplicaSet must be alone.
func (w *world) podCreated(pod *corev1.Pod) {
	newest := ""
	highest := int64(0)
	exists := map[types.UID]bool{} // a user may have deleted others
	for _, rs := range w.owned() {
		exists[rs.UID] = true
		if n := revisionOf(&replicaSet{ReplicaSet: *rs}); n > highest {
			newest, highest = string(rs.UID), n
		}
	}
	if string(metav1.GetControllerOf(pod).UID) != newest || w.strategyChanged() {
		return
	}
	for _, other := range wt.List[*corev1.Pod](w.s) {
		owner := metav1.GetControllerOf(other).UID
		if string(owner) != newest && exists[owner] && !workloads.Terminated(other) {
			w.errorf("D6: pod %s is created while %s exists", pod.Name, other.Name)
		}
	}
}

// strategyChanged reports whether a user has changed the strategy since the Deployment was created: then pods of
// several ReplicaSets may exist.
func (w *world) strategyChanged() bool { return w.deployment().Labels["strategy"] == "changed" }

// checkAvailable checks that a rollout of pods that do not fail leaves the minimum available, once it was reached.
func (w *world) checkAvailable() {
	d := w.deployment()
	minimum := *d.Spec.Replicas - maxUnavailable(d)
	if n := w.available(d); w.reached && n < minimum {
		w.errorf("D2: %d pods available, below %d", n, minimum)
	}
}

// available returns the number of available pods.
func (w *world) available(d *appsv1.Deployment) (n int32) {
	for _, pod := range wt.List[*corev1.Pod](w.s) {
		available, _ := workloads.Available(pod, d.Spec.MinReadySeconds, w.s.Now)
		if available && workloads.Active(pod) {
			n++
		}
	}
	return n
}

func (w *world) describe() string {
	var b strings.Builder
	d := w.deployment()
	fmt.Fprintf(&b, "replicas %d, %s, status %+v\n", *d.Spec.Replicas, d.Spec.Strategy.Type, d.Status)
	for _, rs := range w.owned() {
		fmt.Fprintf(&b, "%s: %d, %v, %+v\n", rs.Name, *rs.Spec.Replicas, rs.Annotations, rs.Status)
	}
	return b.String()
}

// steps lets something happen, weighted.
func (w *world) step() {
	switch n := w.rng.IntN(20); {
	case n < 6:
		w.sync()
	case n < 11:
		w.runReplicaSets()
	case n < 17:
		w.runPods()
	case n < 18:
		w.s.Now = w.s.Now.Add(time.Duration(w.rng.IntN(8000)) * time.Millisecond)
	default:
		w.editAsUser()
	}
}

func TestModelWorld(t *testing.T) {
	t.Parallel()
	wt.RunSeeds(t, 30, func(t *testing.T, rng *rand.Rand) {
		t.Helper()
		w := newWorld(t, rng)
		for range 150 {
			if w.step(); t.Failed() {
				t.Log(w.describe())
				return
			}
		}
		w.settle()
	})
}
