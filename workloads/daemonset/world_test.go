package daemonset

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/podspec"
	"berth/workloads"
	"berth/workloads/workloadstest"
)

const (
	namespace = "ns"
	setName   = "agent"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a DaemonSet on a model server with nodes.
type world struct {
	t          *testing.T
	s          *workloadstest.Server
	e          *workloadstest.Executor
	retryAfter map[string]time.Time
	mutate     func(Input, *workloads.Decision[appsv1.DaemonSetStatus])
	decided    func(Input, workloads.Decision[appsv1.DaemonSetStatus])
}

func newWorld(t *testing.T, rng *rand.Rand, nodes int, edit func(*appsv1.DaemonSet)) *world {
	t.Helper()
	w := &world{t: t, s: workloadstest.NewServer(rng, begin), retryAfter: map[string]time.Time{}}
	w.e = workloadstest.NewExecutor(w.s, rng)
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName},
		Spec: appsv1.DaemonSetSpec{
			RevisionHistoryLimit: new(int32(10)),
			Selector:             &metav1.LabelSelector{MatchLabels: map[string]string{"app": setName}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": setName}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a"}}},
			},
			UpdateStrategy: rolling(intstr.FromInt32(1), intstr.FromInt32(0)),
		},
	}
	podspec.SetTemplateDefaults(&set.Spec.Template)
	if edit != nil {
		edit(set)
	}
	w.create(set)
	for i := range nodes {
		w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i),
			Labels: map[string]string{"zone": fmt.Sprint(i % 2)}}})
	}
	w.e.View.CatchUp()
	return w
}

func rolling(unavailable, surge intstr.IntOrString) appsv1.DaemonSetUpdateStrategy {
	return appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable, MaxSurge: &surge}}
}

func surging(set *appsv1.DaemonSet) {
	set.Spec.UpdateStrategy = rolling(intstr.FromInt32(0), intstr.FromInt32(1))
}

func (w *world) create(o workloads.Object) {
	w.t.Helper()
	if _, err := w.s.Create(o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) sync() (wake time.Time, err error) {
	return workloadstest.Sync(w.e, namespace, setName, func(set *appsv1.DaemonSet,
		failed *workloads.WriteError) workloads.Decision[appsv1.DaemonSetStatus] {
		in := Input{Now: w.s.Now, Set: set, Nodes: workloadstest.ObservedList[*corev1.Node](w.e.View),
			Pods:       workloadstest.ObservedList[*corev1.Pod](w.e.View),
			Revisions:  workloadstest.ObservedList[*appsv1.ControllerRevision](w.e.View),
			RetryAfter: w.retryAfter, WriteError: failed}
		d := Decide(in)
		if w.mutate != nil {
			w.mutate(in, &d)
		}
		if w.decided != nil && failed == nil {
			w.decided(in, d)
		}
		return d
	})
}

// run syncs with all pods becoming ready at once and terminating at once, until nothing changes.
func (w *world) run() {
	w.t.Helper()
	for range 200 {
		if !w.runOnce() {
			return
		}
	}
	w.t.Fatalf("the set does not become stable: %s", w.pods())
}

func (w *world) runOnce() (changed bool) {
	w.t.Helper()
	w.s.OnChange = func(_, _ workloads.Object) { changed = true }
	defer func() { w.s.OnChange = nil }()
	w.e.View.CatchUp()
	if _, err := w.sync(); err != nil {
		w.t.Fatal(err)
	}
	w.kubelets()
	return changed
}

// kubelets schedules all pods, makes them ready and finishes the terminating ones.
func (w *world) kubelets() {
	for _, p := range workloadstest.List[*corev1.Pod](w.s) {
		switch {
		case p.DeletionTimestamp != nil:
			w.s.FinishPod(p.Namespace, p.Name)
		case workloads.ReadySince(p) == nil && !workloads.Terminated(p):
			w.setReady(p.Name, true)
		}
	}
}

// syncUntilQuiet syncs until decisions change nothing. Pods are scheduled to their nodes.
func (w *world) syncUntilQuiet() {
	w.t.Helper()
	for range 100 {
		changed := false
		w.s.OnChange = func(_, _ workloads.Object) { changed = true }
		w.e.View.CatchUp()
		if _, err := w.sync(); err != nil {
			w.t.Fatal(err)
		}
		if w.s.OnChange = nil; !changed {
			return
		}
	}
	w.t.Fatal("decisions do not end")
}

func (w *world) edit(edit func(*appsv1.DaemonSet)) {
	w.t.Helper()
	if err := workloadstest.Edit(w.s, namespace, setName, edit); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setImage(image string) {
	w.t.Helper()
	w.edit(func(set *appsv1.DaemonSet) { set.Spec.Template.Spec.Containers[0].Image = image })
}

func (w *world) editNode(name string, edit func(*corev1.Node)) {
	w.t.Helper()
	if err := workloadstest.Edit(w.s, "", name, edit); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) editPod(name string, edit func(*corev1.Pod)) {
	w.t.Helper()
	if err := workloadstest.Edit(w.s, namespace, name, edit); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setReady(name string, ready bool) {
	w.t.Helper()
	w.editPod(name, func(p *corev1.Pod) {
		p.Spec.NodeName = NodeOf(p)
		p.Status.Phase, p.Status.Conditions = corev1.PodRunning, nil
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.s.Now)}}
		}
	})
}

// podOn returns the name of the first pod of a node.
func (w *world) podOn(node string) string {
	w.t.Helper()
	for _, p := range workloadstest.List[*corev1.Pod](w.s) {
		if NodeOf(p) == node {
			return p.Name
		}
	}
	w.t.Fatalf("no pod on node %s", node)
	return ""
}

func (w *world) set() *appsv1.DaemonSet {
	set, _ := workloadstest.Get[*appsv1.DaemonSet](w.s, namespace, setName)
	return set
}

// pods describes the pods by node: "n0:image", with "!" if not ready and "-" if terminating.
func (w *world) pods() string {
	var out []string
	for _, n := range workloadstest.List[*corev1.Node](w.s) {
		for _, p := range workloadstest.List[*corev1.Pod](w.s) {
			if NodeOf(p) != n.Name {
				continue
			}
			text := n.Name + ":" + p.Spec.Containers[0].Image
			if workloads.ReadySince(p) == nil {
				text += "!"
			}
			if p.DeletionTimestamp != nil {
				text += "-"
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

func (w *world) check(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func summary(s appsv1.DaemonSetStatus) string {
	return fmt.Sprintf("desired %d current %d misscheduled %d ready %d available %d unavailable %d updated %d",
		s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled, s.NumberReady, s.NumberAvailable,
		s.NumberUnavailable, s.UpdatedNumberScheduled)
}

func fixedRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
