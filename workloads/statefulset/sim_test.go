package statefulset

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

const simSteps = 150

// TestSim plays users, kubelets, a garbage collector, late watches, failing writes and kills against Decide.
func TestSim(t *testing.T) {
	t.Parallel()
	workloadstest.RunSeeds(t, seeds(t), func(t *testing.T, rng *rand.Rand) {
		for _, v := range simulate(t, rng, nil) {
			t.Error(v)
		}
	})
}

func seeds(t *testing.T) int {
	t.Helper()
	if testing.Short() {
		return 15
	}
	return 40
}

type mutation func(Input, *workloads.Decision[appsv1.StatefulSetStatus])

// TestSimDetectsWrongDecisions breaks the decisions and expects that the invariant is violated.
func TestSimDetectsWrongDecisions(t *testing.T) {
	t.Parallel()
	for invariant, mutate := range map[string]mutation{
		"S1": func(in Input, d *workloads.Decision[appsv1.StatefulSetStatus]) {
			for _, w := range d.Writes {
				if p, ok := w.Object.(*corev1.Pod); ok && w.Verb == workloads.Create {
					extra := p.DeepCopy()
					extra.Name = fmt.Sprintf("%s-%d", in.Set.Name, 1000)
					w.Object = extra
					d.Writes = append(d.Writes, w)
					return
				}
			}
		},
		"S2": func(in Input, d *workloads.Decision[appsv1.StatefulSetStatus]) {
			in.Set = in.Set.DeepCopy()
			in.Set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
			*d = Decide(in)
		},
		"S3": func(in Input, d *workloads.Decision[appsv1.StatefulSetStatus]) {
			in.Set = in.Set.DeepCopy()
			in.Set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{
				MaxUnavailable: new(intstr.FromInt32(100)), Partition: new(int32(0))}
			*d = Decide(in)
		},
		"S4": func(in Input, d *workloads.Decision[appsv1.StatefulSetStatus]) {
			in.Set = in.Set.DeepCopy()
			if r := in.Set.Spec.UpdateStrategy.RollingUpdate; r != nil {
				r.Partition = new(int32(0))
			}
			*d = Decide(in)
		},
		"S5": func(_ Input, d *workloads.Decision[appsv1.StatefulSetStatus]) {
			for i, w := range d.Writes {
				if _, ok := w.Object.(*corev1.PersistentVolumeClaim); ok {
					d.Writes = append(d.Writes[:i:i], d.Writes[i+1:]...)
					return
				}
			}
		},
		"S6": func(in Input, d *workloads.Decision[appsv1.StatefulSetStatus]) {
			for _, r := range in.Revisions {
				d.Writes = append(d.Writes, workloads.Write{Verb: workloads.Delete, Object: r})
			}
		},
		"S7": func(_ Input, d *workloads.Decision[appsv1.StatefulSetStatus]) { d.Status = nil },
	} {
		t.Run(invariant, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200) {
				for _, v := range simulate(t, rand.New(rand.NewPCG(seed, 0)), mutate) {
					if strings.HasPrefix(v, invariant+":") {
						return
					}
				}
			}
			t.Errorf("no seed detects a violation of %s", invariant)
		})
	}
}

// sim is a world with a random history.
type sim struct {
	*world
	checker
	rng    *rand.Rand
	mutate mutation
}

func simulate(t *testing.T, rng *rand.Rand, mutate mutation) []string {
	t.Helper()
	m := &sim{rng: rng, mutate: mutate}
	m.world = newWorld(t, rng, newSet(int32(rng.IntN(5)), "v0", func(set *appsv1.StatefulSet) {
		if rng.IntN(2) == 0 {
			parallel(set)
		}
		if rng.IntN(2) == 0 {
			withClaims(set)
		}
		if rng.IntN(4) == 0 {
			set.Annotations = map[string]string{AnnotationReplaceBrokenPods: "true"}
		}
		set.Spec.MinReadySeconds = int32(rng.IntN(2) * 5)
		set.Spec.RevisionHistoryLimit = new(int32(rng.IntN(4)))
	}))
	m.s.OnChange = func(old, current workloads.Object) { m.checker.changed(m.s, old, current) }
	m.s.Reject = func(workloads.Write) error {
		if rng.IntN(20) == 0 {
			return apierrors.NewInternalError(errors.New("etcd"))
		}
		return nil
	}
	m.e.Kill = func() bool { return rng.IntN(40) == 0 }
	for range simSteps {
		m.step()
	}
	m.settle()
	return m.violations
}

func (m *sim) step() {
	m.s.Now = m.s.Now.Add(time.Duration(m.rng.IntN(5)) * time.Second)
	switch m.rng.IntN(8) {
	case 0:
		if m.rng.IntN(3) == 0 {
			m.edit(m.userEdit)
		}
	case 1, 2, 3:
		m.kubelet()
	case 4:
		m.s.CollectGarbage()
	default:
		m.e.View.Advance(m.rng)
		m.control()
	}
}

func (m *sim) control() {
	_, _ = workloadstest.Sync(m.e, namespace, setName, func(set *appsv1.StatefulSet,
		failed *workloads.WriteError) workloads.Decision[appsv1.StatefulSetStatus] {
		in := Input{Now: m.s.Now, Set: set, Pods: workloadstest.ObservedList[*corev1.Pod](m.e.View),
			Revisions:  workloadstest.ObservedList[*appsv1.ControllerRevision](m.e.View),
			Claims:     workloadstest.ObservedList[*corev1.PersistentVolumeClaim](m.e.View),
			WriteError: failed}
		d := Decide(in)
		if m.mutate != nil {
			m.mutate(in, &d)
		}
		if failed == nil {
			m.checker.decided(in, d)
		}
		return d
	})
}

func (m *sim) userEdit(set *appsv1.StatefulSet) {
	policies := []appsv1.PersistentVolumeClaimRetentionPolicyType{retain, remove}
	switch m.rng.IntN(8) {
	case 0, 1:
		set.Spec.Replicas = new(int32(m.rng.IntN(5)))
	case 2, 3:
		images := []string{"v0", "v1", "v2", "v3", "broken"}
		set.Spec.Template.Spec.Containers[0].Image = images[m.rng.IntN(len(images))]
	case 4:
		set.Spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{
			Partition: new(int32(m.rng.IntN(3))), MaxUnavailable: new(intstr.FromInt32(int32(1 + m.rng.IntN(3))))}
	case 5:
		if m.rng.IntN(3) == 0 {
			onDelete(set)
		}
	case 6:
		set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenDeleted: policies[m.rng.IntN(2)], WhenScaled: policies[m.rng.IntN(2)]}
	case 7:
		set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: int32(m.rng.IntN(3))}
	}
}

// kubelet changes one pod: it becomes ready or not, fails, terminates, or is deleted by a user.
func (m *sim) kubelet() {
	pods := workloadstest.List[*corev1.Pod](m.s)
	if len(pods) == 0 {
		return
	}
	p := pods[m.rng.IntN(len(pods))]
	switch n := m.rng.IntN(16); {
	case p.DeletionTimestamp != nil:
		m.s.FinishPod(p.Namespace, p.Name)
	case n == 0:
		_ = m.s.Delete(p) // it exists
	case workloads.Terminated(p):
	case n == 1:
		m.editPod(p.Name, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Conditions = corev1.PodFailed, nil
		})
	case n == 2:
		m.setReady(p.Name, false)
	case p.Spec.Containers[0].Image == "broken":
		m.setReady(p.Name, false)
	case workloads.ReadySince(p) == nil:
		m.setReady(p.Name, true)
	}
}

// settle ends all failures, also those of broken images, and checks that the set becomes stable.
func (m *sim) settle() {
	m.s.Reject, m.e.Kill = nil, nil
	m.edit(func(set *appsv1.StatefulSet) { set.Spec.Template.Spec.Containers[0].Image = "last" })
	unchanged := 0
	for range 200 {
		before := m.state()
		m.s.Now = m.s.Now.Add(10 * time.Second)
		m.s.CollectGarbage()
		m.e.View.CatchUp()
		m.control()
		for _, p := range workloadstest.List[*corev1.Pod](m.s) {
			switch {
			case p.DeletionTimestamp != nil:
				m.s.FinishPod(p.Namespace, p.Name)
			case workloads.ReadySince(p) == nil && p.Status.Phase != corev1.PodFailed:
				m.setReady(p.Name, true)
			}
		}
		if unchanged++; m.state() != before {
			unchanged = 0
		}
		if unchanged == 3 {
			m.checkStable()
			return
		}
	}
	m.violated("S7", "the set does not become stable: %s", m.pods())
}

func (m *sim) state() string {
	s := m.set().Status
	return fmt.Sprint(m.pods(), m.claims(), m.world.revisions(), summary(s), s.CurrentRevision)
}

func (m *sim) checkStable() {
	set := m.set()
	m.in = Input{Set: set}
	first, n := m.bounds()
	pods := workloadstest.List[*corev1.Pod](m.s)
	if len(pods) != n {
		m.violated("S7", "pods %s with %d replicas from %d", m.pods(), n, first)
	}
	updated := 0
	for o := range ordinalsOf(pods, func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == "last" }) {
		if updated++; o < first || o >= first+n {
			m.violated("S7", "pod of ordinal %d with %d replicas from %d", o, n, first)
		}
	}
	if set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType && updated < n-m.partition() {
		m.violated("S7", "pods %s are not updated down to partition %d", m.pods(), m.partition())
	}
	s := set.Status
	if int(s.Replicas) != n || int(s.ReadyReplicas) != n || int(s.AvailableReplicas) != n ||
		int(s.UpdatedReplicas) != updated || s.ObservedGeneration != set.Generation {
		m.violated("S7", "status %s, generation %d of %d, pods %s", summary(s), s.ObservedGeneration, set.Generation,
			m.pods())
	}
}
