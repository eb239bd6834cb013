package statefulset

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
	"berth/workloads"
	"berth/workloads/workloadstest"
)

const (
	namespace = "ns"
	setName   = "web"
)

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a StatefulSet on a model server.
type world struct {
	t *testing.T
	s *workloadstest.Server
	e *workloadstest.Executor
	// decided, if set, is called with each decision that is not about an error.
	decided func(Input, workloads.Decision[appsv1.StatefulSetStatus])
}

func newWorld(t *testing.T, rng *rand.Rand, set *appsv1.StatefulSet) *world {
	t.Helper()
	w := &world{t: t, s: workloadstest.NewServer(rng, begin)}
	w.e = workloadstest.NewExecutor(w.s, rng)
	if set != nil {
		if _, err := w.s.Create(set); err != nil {
			t.Fatal(err)
		}
	}
	w.e.View.CatchUp()
	return w
}

// newSet returns a set with defaults of n replicas of the image, changed by edit.
func newSet(n int32, image string, edit func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: setName},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &n, ServiceName: "svc", RevisionHistoryLimit: new(int32(10)),
			PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			Selector:            &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
			},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}},
		},
	}
	podspec.SetTemplateDefaults(&set.Spec.Template)
	if edit != nil {
		edit(set)
	}
	return set
}

func withClaims(set *appsv1.StatefulSet) {
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
}

func withRetention(whenDeleted, whenScaled appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
	return func(set *appsv1.StatefulSet) {
		withClaims(set)
		set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: whenDeleted, WhenScaled: whenScaled}
	}
}

// decide is the call of Decide with what the controller has observed.
func (w *world) decide(set *appsv1.StatefulSet,
	failed *workloads.WriteError) workloads.Decision[appsv1.StatefulSetStatus] {
	in := Input{Now: w.s.Now, Set: set, Pods: workloadstest.ObservedList[*corev1.Pod](w.e.View),
		Revisions:  workloadstest.ObservedList[*appsv1.ControllerRevision](w.e.View),
		Claims:     workloadstest.ObservedList[*corev1.PersistentVolumeClaim](w.e.View),
		WriteError: failed}
	out := Decide(in)
	if w.decided != nil && failed == nil {
		w.decided(in, out)
	}
	return out
}

func (w *world) sync() (wake time.Time, err error) {
	return workloadstest.Sync(w.e, namespace, setName, w.decide)
}

// syncUntilQuiet syncs until decisions change nothing. All changes are observed at once.
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

// run syncs with all pods becoming ready at once and terminating at once.
func (w *world) run() {
	w.t.Helper()
	for range 100 {
		w.syncUntilQuiet()
		changed := false
		for _, p := range workloadstest.List[*corev1.Pod](w.s) {
			switch {
			case p.DeletionTimestamp != nil:
				w.s.FinishPod(p.Namespace, p.Name)
			case workloads.ReadySince(p) == nil && p.Status.Phase != corev1.PodFailed:
				w.setReady(p.Name, true)
			default:
				continue
			}
			changed = true
		}
		if w.s.CollectGarbage(); !changed {
			return
		}
	}
	w.t.Fatal("the set does not become stable")
}

func (w *world) edit(edit func(*appsv1.StatefulSet)) {
	w.t.Helper()
	if err := workloadstest.Edit(w.s, namespace, setName, edit); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) setImage(image string) {
	w.t.Helper()
	w.edit(func(set *appsv1.StatefulSet) { set.Spec.Template.Spec.Containers[0].Image = image })
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
		p.Spec.NodeName, p.Status.Phase = "node", corev1.PodRunning
		p.Status.Conditions = nil
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.s.Now)}}
		}
	})
}

func (w *world) set() *appsv1.StatefulSet {
	set, _ := workloadstest.Get[*appsv1.StatefulSet](w.s, namespace, setName)
	return set
}

// pods describes the pods: "web-0:image", with "!" if not ready and "-" if terminating.
func (w *world) pods() string {
	var out []string
	for _, p := range workloadstest.List[*corev1.Pod](w.s) {
		text := p.Name + ":" + p.Spec.Containers[0].Image
		if workloads.ReadySince(p) == nil {
			text += "!"
		}
		if p.DeletionTimestamp != nil {
			text += "-"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// claims describes the claims with the kinds of their owners.
func (w *world) claims() string {
	var out []string
	for _, c := range workloadstest.List[*corev1.PersistentVolumeClaim](w.s) {
		text := c.Name
		for _, ref := range c.OwnerReferences {
			text += "/" + ref.Kind
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func (w *world) eventReasons() string {
	var out []string
	for _, e := range w.s.Events {
		out = append(out, e.Reason)
	}
	return strings.Join(out, " ")
}

func (w *world) check(what, got, want string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (w *world) checkPods(want string) {
	w.t.Helper()
	w.check("pods", w.pods(), want)
}

func summary(s appsv1.StatefulSetStatus) string {
	return fmt.Sprintf("replicas %d ready %d available %d current %d updated %d", s.Replicas, s.ReadyReplicas,
		s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas)
}

func fixedRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// ordinalsOf returns the ordinals of pods by the condition.
func ordinalsOf(pods []*corev1.Pod, keep func(*corev1.Pod) bool) map[int]types.UID {
	out := map[int]types.UID{}
	for _, p := range pods {
		suffix, ok := strings.CutPrefix(p.Name, setName+"-")
		if n, err := strconv.Atoi(suffix); ok && err == nil && keep(p) {
			out[n] = p.UID
		}
	}
	return out
}
