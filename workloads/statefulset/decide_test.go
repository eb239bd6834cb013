package statefulset

import (
	"errors"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

func parallel(set *appsv1.StatefulSet) { set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }

func TestOrderedReadyCreatesOnePodAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", nil))
	w.syncUntilQuiet()
	w.checkPods("web-0:a!")
	w.setReady("web-0", true)
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a!")
	w.setReady("web-0", false)
	w.setReady("web-1", true)
	w.syncUntilQuiet()
	w.checkPods("web-0:a! web-1:a")
	w.run()
	w.checkPods("web-0:a web-1:a web-2:a")
	w.check("status", summary(w.set().Status), "replicas 3 ready 3 available 3 current 3 updated 3")
	w.check("events", w.eventReasons(), "SuccessfulCreate SuccessfulCreate SuccessfulCreate")
	w.check("message", w.s.Events[0].Message, "create Pod web-0 in StatefulSet web successful")
}

func TestParallelCreatesAndDeletesAllAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", parallel))
	w.syncUntilQuiet()
	w.checkPods("web-0:a! web-1:a! web-2:a!")
	w.edit(func(set *appsv1.StatefulSet) { *set.Spec.Replicas = 0 })
	w.syncUntilQuiet()
	w.checkPods("")
}

func TestOrderedReadyScalesDownFromTheHighestOrdinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", nil))
	w.run()
	w.edit(func(set *appsv1.StatefulSet) { *set.Spec.Replicas = 1 })
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a web-2:a-")
	w.s.FinishPod(namespace, "web-2")
	w.setReady("web-0", false)
	w.syncUntilQuiet()
	w.checkPods("web-0:a! web-1:a")
	w.setReady("web-0", true)
	w.run()
	w.checkPods("web-0:a")
}

func TestScalingDownDeletesTheFirstUnavailablePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(2, "a", nil))
	w.run()
	w.setReady("web-1", false)
	w.edit(func(set *appsv1.StatefulSet) { *set.Spec.Replicas = 1 })
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a!-")
}

func TestScalingDownDeletesFailedPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(2, "a", nil))
	w.run()
	for _, name := range []string{"web-0", "web-1"} {
		w.editPod(name, func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = corev1.PodFailed, nil })
	}
	w.edit(func(set *appsv1.StatefulSet) { *set.Spec.Replicas = 0 })
	w.run()
	w.checkPods("")
}

func TestIdentityOfPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", func(set *appsv1.StatefulSet) {
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
		withClaims(set)
		set.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "other"}}
	}))
	w.run()
	p, found := workloadstest.Get[*corev1.Pod](w.s, namespace, "web-5")
	if !found {
		t.Fatal("no pod web-5")
	}
	w.check("hostname", p.Spec.Hostname+"."+p.Spec.Subdomain, "web-5.svc")
	w.check("pod name label", p.Labels["statefulset.kubernetes.io/pod-name"], "web-5")
	w.check("index label", p.Labels["apps.kubernetes.io/pod-index"], "5")
	w.check("revision label", p.Labels["controller-revision-hash"], w.set().Status.UpdateRevision)
	w.check("generateName", p.GenerateName, "web-")
	if ref := metav1.GetControllerOf(p); ref == nil || ref.Kind != "StatefulSet" || ref.UID != w.set().UID {
		t.Errorf("controller %v", ref)
	}
	if v := p.Spec.Volumes; len(v) != 2 || v[0].PersistentVolumeClaim == nil ||
		v[0].PersistentVolumeClaim.ClaimName != "data-web-5" || v[1].Name != "other" {
		t.Errorf("volumes %v", v)
	}
	w.editPod("web-5", func(p *corev1.Pod) { delete(p.Labels, "statefulset.kubernetes.io/pod-name") })
	w.syncUntilQuiet()
	p, _ = workloadstest.Get[*corev1.Pod](w.s, namespace, "web-5")
	w.check("restored label", p.Labels["statefulset.kubernetes.io/pod-name"], "web-5")
}

func TestRollingUpdateReplacesFromTheHighestOrdinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", nil))
	w.run()
	first := w.set().Status.CurrentRevision
	w.setImage("b")
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a web-2:a-")
	w.check("status", summary(w.set().Status), "replicas 3 ready 3 available 3 current 2 updated 0")
	w.s.FinishPod(namespace, "web-2")
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a web-2:b!")
	w.setReady("web-2", true)
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a- web-2:b")
	if s := w.set().Status; s.CurrentRevision != first || s.UpdateRevision == first {
		t.Errorf("revisions %q and %q in the middle of a rollout from %q", s.CurrentRevision, s.UpdateRevision, first)
	}
	w.run()
	w.checkPods("web-0:b web-1:b web-2:b")
	if s := w.set().Status; s.CurrentRevision != s.UpdateRevision || s.CurrentReplicas != 3 {
		t.Errorf("status after the rollout: %+v", s)
	}
}

func TestRollingUpdateKeepsPodsBelowThePartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", func(set *appsv1.StatefulSet) {
		set.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(2))
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1}
	}))
	w.run()
	w.setImage("b")
	w.run()
	w.checkPods("web-1:a web-2:a web-3:b")
	w.editPod("web-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed; p.Status.Conditions = nil })
	w.run()
	w.checkPods("web-1:a web-2:a web-3:b")
	w.check("status", summary(w.set().Status), "replicas 3 ready 3 available 3 current 2 updated 1")
}

func TestMaxUnavailable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		max  intstr.IntOrString
		want string
	}{
		"count":                    {intstr.FromInt32(2), "web-0:a web-1:a web-2:a web-3:a- web-4:a-"},
		"percentage, rounded down": {intstr.FromString("50%"), "web-0:a web-1:a web-2:a web-3:a- web-4:a-"},
		"at least one":             {intstr.FromString("1%"), "web-0:a web-1:a web-2:a web-3:a web-4:a-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), newSet(5, "a", func(set *appsv1.StatefulSet) {
				set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = &c.max
			}))
			w.run()
			w.setImage("b")
			w.syncUntilQuiet()
			w.checkPods(c.want)
			w.run()
			w.checkPods("web-0:b web-1:b web-2:b web-3:b web-4:b")
		})
	}
}

func TestUnavailablePodsCountAgainstMaxUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(3, "a", parallel))
	w.run()
	w.setReady("web-0", false)
	w.setImage("b")
	w.syncUntilQuiet()
	w.checkPods("web-0:a!- web-1:a web-2:a")
}

func TestOnDeleteReplacesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(2, "a", func(set *appsv1.StatefulSet) {
		set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	}))
	w.run()
	w.setImage("b")
	w.run()
	w.checkPods("web-0:a web-1:a")
	p, _ := workloadstest.Get[*corev1.Pod](w.s, namespace, "web-0")
	if err := w.s.Delete(p); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.checkPods("web-0:b web-1:a")
	p, _ = workloadstest.Get[*corev1.Pod](w.s, namespace, "web-1")
	if err := w.s.Delete(p); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.checkPods("web-0:b web-1:b")
	if set := w.set(); set.Status.CurrentRevision != set.Status.UpdateRevision {
		t.Errorf("the update is complete, but the current revision is %s", set.Status.CurrentRevision)
	}
}

func TestTerminatedPodsAreRecreated(t *testing.T) {
	t.Parallel()
	for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
		for _, edit := range []func(*appsv1.StatefulSet){nil, parallel} {
			w := newWorld(t, fixedRand(), newSet(1, "a", edit))
			w.run()
			before, _ := workloadstest.Get[*corev1.Pod](w.s, namespace, "web-0")
			w.editPod("web-0", func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = phase, nil })
			w.run()
			w.checkPods("web-0:a")
			if after, _ := workloadstest.Get[*corev1.Pod](w.s, namespace, "web-0"); after.UID == before.UID {
				t.Errorf("the %s pod was not replaced", phase)
			}
		}
	}
}

func TestMinReadySeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(2, "a", func(set *appsv1.StatefulSet) { set.Spec.MinReadySeconds = 10 }))
	w.syncUntilQuiet()
	w.setReady("web-0", true)
	w.e.View.CatchUp()
	wake, err := w.sync()
	if err != nil || !wake.Equal(begin.Add(10*time.Second)) {
		t.Errorf("wake %v, err %v", wake, err)
	}
	w.checkPods("web-0:a")
	w.check("status", summary(w.set().Status), "replicas 1 ready 1 available 0 current 1 updated 1")
	w.s.Now = wake
	w.syncUntilQuiet()
	w.checkPods("web-0:a web-1:a!")
}

func TestBrokenRollout(t *testing.T) {
	t.Parallel()
	annotated := func(set *appsv1.StatefulSet) {
		set.Annotations = map[string]string{AnnotationReplaceBrokenPods: "true"}
	}
	for name, c := range map[string]struct {
		edit func(*appsv1.StatefulSet)
		want string
	}{
		"waits for the broken pod":                    {nil, "web-0:a web-1:a web-2:broken!"},
		"replaces the broken pod with annotation":     {annotated, "web-0:a web-1:a web-2:broken!-"},
		"the annotation respects OnDelete":            {both(annotated, onDelete), ""},
		"the annotation respects the partition":       {both(annotated, partitioned), ""},
		"the annotation replaces in parallel sets":    {both(annotated, parallel), "web-0:a web-1:a web-2:broken!-"},
		"a parallel set does not need the annotation": {parallel, "web-0:a web-1:a web-2:broken!-"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), newSet(3, "a", nil))
			w.run()
			w.setImage("broken")
			w.syncUntilQuiet()
			w.s.FinishPod(namespace, "web-2")
			w.syncUntilQuiet()
			w.setReady("web-2", false)
			w.edit(func(set *appsv1.StatefulSet) {
				set.Spec.Template.Spec.Containers[0].Image = "fixed"
				if c.edit != nil {
					c.edit(set)
				}
			})
			w.syncUntilQuiet()
			if c.want == "" {
				c.want = "web-0:a web-1:a web-2:broken!"
			}
			w.checkPods(c.want)
		})
	}
}

func onDelete(set *appsv1.StatefulSet) {
	set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}

func partitioned(set *appsv1.StatefulSet) {
	set.Spec.UpdateStrategy.RollingUpdate.Partition = new(int32(3))
}

func both(a, b func(*appsv1.StatefulSet)) func(*appsv1.StatefulSet) {
	return func(set *appsv1.StatefulSet) { a(set); b(set) }
}

func TestPodsAreAdoptedAndReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", nil))
	orphan := func(name string, labels map[string]string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
			Spec: *w.set().Spec.Template.Spec.DeepCopy()}
		if _, err := w.s.Create(p); err != nil {
			t.Fatal(err)
		}
	}
	orphan("web-0", map[string]string{"app": "web"})
	orphan("web-00", map[string]string{"app": "web"})
	orphan("other-1", map[string]string{"app": "web"})
	w.syncUntilQuiet()
	for name, adopted := range map[string]bool{"web-0": true, "web-00": false, "other-1": false} {
		p, found := workloadstest.Get[*corev1.Pod](w.s, namespace, name)
		if !found || (metav1.GetControllerOf(p) != nil) != adopted {
			t.Errorf("pod %s: found %v, owners %v", name, found, p.OwnerReferences)
		}
	}
	w.setReady("web-0", true)
	w.editPod("web-0", func(p *corev1.Pod) { p.Labels["app"] = "else" })
	w.e.View.CatchUp()
	if _, err := w.sync(); err == nil {
		t.Error("web-0 was created beside a released pod of its name")
	}
	p, _ := workloadstest.Get[*corev1.Pod](w.s, namespace, "web-0")
	if len(p.OwnerReferences) != 0 {
		t.Errorf("owners %v of a pod that no longer matches", p.OwnerReferences)
	}
}

func TestDeletedSetGetsOnlyItsStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(2, "a", func(set *appsv1.StatefulSet) { set.Finalizers = []string{"x/y"} }))
	w.syncUntilQuiet()
	if err := w.s.Delete(w.set()); err != nil {
		t.Fatal(err)
	}
	w.setReady("web-0", true)
	w.setImage("b")
	w.syncUntilQuiet()
	w.checkPods("web-0:a")
	w.check("status", summary(w.set().Status), "replicas 1 ready 1 available 1 current 1 updated 0")
}

func TestStatusAfterWriteError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", nil))
	w.s.Reject = func(write workloads.Write) error {
		if write.Verb == workloads.Create {
			if _, ok := write.Object.(*appsv1.ControllerRevision); ok {
				return errors.New("quota")
			}
		}
		return nil
	}
	if _, err := w.sync(); err == nil {
		t.Error("the revision was created")
	}
	if s := w.set().Status; s.UpdateRevision != "" {
		t.Errorf("the status names revision %s, which does not exist", s.UpdateRevision)
	}
	w.s.Reject = nil
	w.run()
	w.setImage("b")
	w.s.Reject = func(write workloads.Write) error {
		if write.Verb == workloads.Delete {
			return errors.New("not now")
		}
		return nil
	}
	w.e.View.CatchUp()
	if _, err := w.sync(); err == nil {
		t.Error("the pod was deleted")
	}
	w.check("status", summary(w.set().Status), "replicas 1 ready 1 available 1 current 1 updated 0")
	w.check("event", w.s.Events[len(w.s.Events)-1].Message,
		"delete Pod web-0 in StatefulSet web failed error: not now")
}

func TestUnreadableRevisionIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), newSet(1, "a", nil))
	w.run()
	if err := workloadstest.Edit(w.s, namespace, w.set().Status.CurrentRevision, func(r *appsv1.ControllerRevision) {
		r.Data = runtime.RawExtension{Raw: []byte(`{"spec":{}}`)}
	}); err != nil {
		t.Fatal(err)
	}
	w.syncUntilQuiet()
	last := w.s.Events[len(w.s.Events)-1]
	w.check("reason", last.Reason, "FailedRevision")
	w.checkPods("web-0:a")
}
