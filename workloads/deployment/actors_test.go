package deployment

import (
	"fmt"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/workloads"
	wt "berth/workloads/workloadstest"
)

// podsOf returns the pods of a ReplicaSet, in the order in which its controller deletes them.
func (w *world) podsOf(rs *appsv1.ReplicaSet) (out []*corev1.Pod) {
	for _, pod := range wt.List[*corev1.Pod](w.s) {
		if metav1.IsControlledBy(pod, rs) {
			out = append(out, pod)
		}
	}
	slices.SortStableFunc(out, func(a, b *corev1.Pod) int {
		// Available ones last; readiness is older for those.
		return w.rank(rs, a) - w.rank(rs, b)
	})
	return out
}

func (w *world) rank(rs *appsv1.ReplicaSet, pod *corev1.Pod) int {
	available, _ := workloads.Available(pod, rs.Spec.MinReadySeconds, w.s.Now)
	switch {
	case available:
		return 2
	case workloads.ReadySince(pod) != nil:
		return 1
	}
	return 0
}

// runReplicaSets is the ReplicaSet controller: it manages the pods of some ReplicaSets, and reports the status of some.
func (w *world) runReplicaSets() {
	for _, rs := range wt.List[*appsv1.ReplicaSet](w.s) {
		if w.quiet || w.rng.IntN(2) == 0 {
			w.managePods(rs)
		}
		if w.quiet || w.rng.IntN(2) == 0 {
			w.reportStatus(rs)
		}
	}
	w.s.CollectGarbage()
}

func (w *world) managePods(rs *appsv1.ReplicaSet) {
	active := slices.DeleteFunc(w.podsOf(rs), func(p *corev1.Pod) bool { return !workloads.Active(p) })
	if rs.DeletionTimestamp != nil {
		return
	}
	for range int(*rs.Spec.Replicas) - len(active) {
		pod := podOf(rs, "")
		pod.Name, pod.GenerateName, pod.Spec = "", rs.Name+"-", *rs.Spec.Template.Spec.DeepCopy()
		if _, err := w.s.Create(pod); err != nil {
			w.t.Fatal(err)
		}
	}
	for i := range len(active) - int(*rs.Spec.Replicas) {
		if err := w.s.Delete(active[i]); err != nil {
			w.t.Fatal(err)
		}
	}
}

// reportStatus writes the status of a ReplicaSet. Its generation is observed only if its pods are managed.
func (w *world) reportStatus(rs *appsv1.ReplicaSet) {
	status := appsv1.ReplicaSetStatus{ObservedGeneration: rs.Status.ObservedGeneration, TerminatingReplicas: new(int32)}
	for _, pod := range w.podsOf(rs) {
		switch {
		case workloads.Terminated(pod):
		case pod.DeletionTimestamp != nil:
			*status.TerminatingReplicas++
		default:
			status.Replicas++
			if workloads.ReadySince(pod) != nil {
				status.ReadyReplicas++
			}
			if available, _ := workloads.Available(pod, rs.Spec.MinReadySeconds, w.s.Now); available {
				status.AvailableReplicas++
			}
		}
	}
	if status.Replicas == *rs.Spec.Replicas {
		status.ObservedGeneration = rs.Generation
	}
	if w.failing {
		status.Conditions = []appsv1.ReplicaSetCondition{{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate",
		}}
	}
	rs.Status = status
	rs.ResourceVersion = ""
	if err := w.s.UpdateStatus(rs); err != nil {
		w.t.Fatal(err)
	}
}

// runPods is the kubelets: each pod goes on by one step, or fails.
func (w *world) runPods() {
	for _, pod := range wt.List[*corev1.Pod](w.s) {
		if !w.quiet && w.rng.IntN(3) == 0 {
			continue
		}
		bad := len(pod.Spec.Containers) > 0 && pod.Spec.Containers[0].Image == "bad"
		fails := !w.quiet && !w.calm && w.rng.IntN(15) == 0
		switch {
		case pod.DeletionTimestamp != nil:
			w.s.FinishPod(pod.Namespace, pod.Name)
		case workloads.Terminated(pod):
			_ = w.s.Delete(pod) // the pod garbage collector
		case pod.Spec.NodeName == "":
			w.editPod(pod, func(p *corev1.Pod) { p.Spec.NodeName = "node" })
		case fails && w.rng.IntN(2) == 0:
			w.editPod(pod, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		case fails:
			w.editPod(pod, func(p *corev1.Pod) { p.Status.Conditions = nil })
		case workloads.ReadySince(pod) == nil && !bad:
			w.editPod(pod, func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodRunning
				p.Status.Conditions = []corev1.PodCondition{{
					Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(w.s.Now.Truncate(time.Second)),
				}}
			})
		}
	}
	d := w.deployment()
	w.reached = w.reached || w.available(d) >= *d.Spec.Replicas
}

func (w *world) editPod(pod *corev1.Pod, change func(*corev1.Pod)) {
	if err := wt.Edit(w.s, pod.Namespace, pod.Name, change); err != nil {
		w.t.Fatal(err)
	}
}

func label(d *appsv1.Deployment, key, value string) {
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	d.Labels[key] = value
}

// editAsUser makes one edit of a user.
func (w *world) editAsUser() {
	images := []string{"v1", "v2", "v3", "bad"}
	switch w.rng.IntN(10) {
	case 0, 1, 2:
		image := images[w.rng.IntN(len(images))]
		w.edit(func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = image })
	case 3:
		n := int32(w.rng.IntN(9))
		w.edit(func(d *appsv1.Deployment) {
			if !w.calm {
				d.Spec.Replicas = &n
			}
		})
	case 4:
		w.edit(func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused })
	case 5:
		w.edit(func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{
				"note": fmt.Sprint(w.rng.IntN(3)), RevisionAnnotation: d.Annotations[RevisionAnnotation],
			}
		})
	case 6:
		if !w.calm {
			w.edit(func(d *appsv1.Deployment) { w.randomStrategy(d); label(d, "strategy", "changed") })
		}
	case 7:
		w.edit(func(d *appsv1.Deployment) {
			deadlines := []*int32{nil, new(int32(2)), new(int32(600)), new(int32(math.MaxInt32))}
			d.Spec.ProgressDeadlineSeconds = deadlines[w.rng.IntN(len(deadlines))]
			d.Spec.RevisionHistoryLimit = new(int32(w.rng.IntN(4)))
		})
	case 8:
		w.failing = !w.failing
	case 9:
		w.editReplicaSets()
	}
}

// editReplicaSets creates a ReplicaSet that matches the selector, creates one with the name that a new template gets,
// or deletes one.
func (w *world) editReplicaSets() {
	w.images++
	d := w.deployment()
	d.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v1.%d", w.images)
	r := newRollout(Input{Now: now, Deployment: d}, nil)
	rs := &r.newReplicaSet().ReplicaSet
	switch w.rng.IntN(3) {
	case 0:
		rs.Name, rs.OwnerReferences = fmt.Sprintf("orphan-%d", w.images), nil
		rs.Spec.Template.Spec.Containers[0].Image = rs.Name
		rs.Spec.Selector.MatchLabels["pod-template-hash"] = rs.Name
		rs.Spec.Template.Labels["pod-template-hash"] = rs.Name
		_, _ = w.s.Create(rs)
	case 1:
		rs.OwnerReferences = []metav1.OwnerReference{{Name: "other", UID: "uid-of-other", Controller: new(true)}}
		rs.Labels, rs.Spec.Selector.MatchLabels = nil, map[string]string{"app": "other"}
		rs.Spec.Template.Labels = map[string]string{"app": "other"}
		if _, err := w.s.Create(&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("other-%d", w.rng.IntN(99))},
		}); err == nil {
			w.createForeign(rs)
			w.edit(func(now *appsv1.Deployment) { now.Spec.Template = d.Spec.Template })
		}
	case 2:
		if sets := w.owned(); len(sets) > 0 && !w.calm {
			_ = w.s.Delete(sets[w.rng.IntN(len(sets))]) // it exists
		}
	}
}

func (w *world) createForeign(rs *appsv1.ReplicaSet) {
	for _, other := range wt.List[*appsv1.Deployment](w.s) {
		if other.Name != "web" {
			rs.OwnerReferences[0].UID = other.UID
		}
	}
	if stored, err := w.s.Create(rs); err == nil {
		w.foreign[stored.GetUID()] = true
	}
}

// settle ends all interference, lets the world come to rest, and checks what it comes to.
func (w *world) settle() {
	w.quiet, w.failing = true, false
	w.edit(func(d *appsv1.Deployment) {
		d.Spec.Paused = false
		if c := &d.Spec.Template.Spec.Containers[0]; c.Image == "bad" {
			c.Image = "v1"
		}
	})
	rest := 0
	for range 400 {
		before := w.s.Version()
		w.sync()
		w.runReplicaSets()
		w.runPods()
		if w.t.Failed() {
			w.t.Log(w.describe())
			return
		}
		w.s.Now = w.s.Now.Add(time.Second)
		if rest++; before != w.s.Version() {
			rest = 0
		}
		if rest > 10 {
			w.checkRest()
			return
		}
	}
	w.errorf("the world does not come to rest:\n%s", w.describe())
}

// checkRest checks the Deployment against the pods (D8).
func (w *world) checkRest() {
	d, old := w.deployment(), 0
	n := *d.Spec.Replicas
	var current *appsv1.ReplicaSet
	for _, rs := range w.owned() {
		switch {
		case sameTemplate(&rs.Spec.Template, &d.Spec.Template) && *rs.Spec.Replicas == n && current == nil:
			current = rs
		case *rs.Spec.Replicas != 0 || len(w.podsOf(rs)) > 0:
			w.errorf("D8: %s has %d replicas and %d pods", rs.Name, *rs.Spec.Replicas, len(w.podsOf(rs)))
		default:
			old++
		}
	}
	if current == nil || old > int(*d.Spec.RevisionHistoryLimit) {
		w.errorf("D8: new ReplicaSet %v, %d old ones", current != nil, old)
		w.t.Log(w.describe())
		return
	}
	if d.Annotations[RevisionAnnotation] != current.Annotations[RevisionAnnotation] {
		w.errorf("D8: revision %s, the new ReplicaSet has %s", d.Annotations[RevisionAnnotation],
			current.Annotations[RevisionAnnotation])
	}
	if pods := len(w.podsOf(current)); pods != int(n) {
		w.errorf("D8: %d pods of %d", pods, n)
	}
	want := appsv1.DeploymentStatus{
		ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n,
		TerminatingReplicas: new(int32), CollisionCount: d.Status.CollisionCount, Conditions: d.Status.Conditions,
	}
	if !equality.Semantic.DeepEqual(want, d.Status) {
		w.errorf("D8: status %+v, want %+v", d.Status, want)
	}
	reasons := map[appsv1.DeploymentConditionType]string{}
	for _, c := range d.Status.Conditions {
		reasons[c.Type] = string(c.Status) + " " + c.Reason
	}
	wantReasons := map[appsv1.DeploymentConditionType]string{appsv1.DeploymentAvailable: "True " + reasonMinimum}
	if hasProgressDeadline(d) {
		wantReasons[appsv1.DeploymentProgressing] = "True " + reasonAvailable
	}
	if !equality.Semantic.DeepEqual(reasons, wantReasons) {
		w.errorf("D8: conditions %v, want %v", reasons, wantReasons)
	}
}
