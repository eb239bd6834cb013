package daemonset

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/workloads"
	"berth/workloads/workloadstest"
)

// TestSim plays users, nodes, kubelets, late watches, failing writes and kills against Decide.
func TestSim(t *testing.T) {
	t.Parallel()
	seeds := 30
	if testing.Short() {
		seeds = 10
	}
	workloadstest.RunSeeds(t, seeds, func(t *testing.T, rng *rand.Rand) {
		for _, v := range simulate(t, rng, nil) {
			t.Error(v)
		}
	})
}

type mutation func(Input, *workloads.Decision[appsv1.DaemonSetStatus])

// TestSimDetectsWrongDecisions breaks the decisions and expects that the invariant is violated.
func TestSimDetectsWrongDecisions(t *testing.T) {
	t.Parallel()
	for invariant, mutate := range map[string]mutation{
		"D1": func(_ Input, d *workloads.Decision[appsv1.DaemonSetStatus]) {
			for _, w := range d.Writes {
				if _, ok := w.Object.(*corev1.Pod); ok && w.Verb == workloads.Create {
					d.Writes = append(d.Writes, w, w)
					return
				}
			}
		},
		"D2": func(in Input, d *workloads.Decision[appsv1.DaemonSetStatus]) {
			in.Nodes = nil
			for _, n := range nodeNames {
				in.Nodes = append(in.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
			}
			*d = Decide(in)
		},
		"D3": func(in Input, d *workloads.Decision[appsv1.DaemonSetStatus]) {
			in.Set = in.Set.DeepCopy()
			in.Set.Spec.UpdateStrategy = rolling(intstr.FromString("100%"), intstr.FromInt32(0))
			*d = Decide(in)
		},
		"D4": func(in Input, d *workloads.Decision[appsv1.DaemonSetStatus]) {
			in.RetryAfter = nil
			*d = Decide(in)
		},
		"D5": func(in Input, d *workloads.Decision[appsv1.DaemonSetStatus]) {
			for _, r := range in.Revisions {
				d.Writes = append(d.Writes, workloads.Write{Verb: workloads.Delete, Object: r})
			}
		},
		"D6": func(_ Input, d *workloads.Decision[appsv1.DaemonSetStatus]) { d.Status = nil },
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

var nodeNames = []string{"n0", "n1", "n2", "n3"}

// sim is a world with a random history. It checks D1 to D5 against what the controller has observed.
type sim struct {
	*world
	rng        *rand.Rand
	violations []string
}

func (m *sim) violated(invariant, format string, args ...any) {
	m.violations = append(m.violations, invariant+": "+fmt.Sprintf(format, args...))
}

func simulate(t *testing.T, rng *rand.Rand, mutate mutation) []string {
	t.Helper()
	m := &sim{rng: rng, world: newWorld(t, rng, len(nodeNames), func(set *appsv1.DaemonSet) {
		set.Spec.UpdateStrategy = randomStrategy(rng)
		set.Spec.MinReadySeconds = int32(rng.IntN(2) * 5)
		set.Spec.RevisionHistoryLimit = new(int32(rng.IntN(3)))
	})}
	m.mutate, m.decided = mutate, m.check
	m.s.Reject = func(workloads.Write) error {
		if rng.IntN(20) == 0 {
			return apierrors.NewInternalError(errors.New("etcd"))
		}
		return nil
	}
	m.e.Kill = func() bool { return rng.IntN(40) == 0 }
	for range 150 {
		m.step()
	}
	m.settle()
	return m.violations
}

func randomStrategy(rng *rand.Rand) appsv1.DaemonSetUpdateStrategy {
	switch rng.IntN(5) {
	case 0:
		return appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	case 1, 2:
		return rolling(intstr.FromInt32(0), intstr.FromInt32(int32(1+rng.IntN(2))))
	}
	return rolling(intstr.FromInt32(int32(1+rng.IntN(2))), intstr.FromInt32(0))
}

func (m *sim) step() {
	m.s.Now = m.s.Now.Add(time.Duration(m.rng.IntN(5)) * time.Second)
	switch m.rng.IntN(8) {
	case 0:
		m.edit(func(set *appsv1.DaemonSet) {
			switch m.rng.IntN(6) {
			case 0:
				set.Spec.UpdateStrategy = randomStrategy(m.rng)
			case 1:
				set.Spec.Template.Spec.NodeSelector = []map[string]string{nil, {"zone": "1"}}[m.rng.IntN(2)]
			case 2:
				set.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v%d", m.rng.IntN(3))
			}
		})
	case 1:
		m.editNode(nodeNames[m.rng.IntN(len(nodeNames))], func(n *corev1.Node) {
			effects := []corev1.TaintEffect{"", corev1.TaintEffectNoExecute, corev1.TaintEffectNoSchedule, "", ""}
			n.Spec.Taints = nil
			if e := effects[m.rng.IntN(len(effects))]; e != "" {
				n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: e}}
			}
		})
	case 2, 3, 4:
		m.kubelet()
	default:
		m.e.View.Advance(m.rng)
		_, _ = m.sync() // errors are part of the model
	}
}

// kubelet changes one pod: it becomes ready or not, fails, terminates, or is deleted by a user.
func (m *sim) kubelet() {
	pods := workloadstest.List[*corev1.Pod](m.s)
	if len(pods) == 0 {
		return
	}
	p := pods[m.rng.IntN(len(pods))]
	switch n := m.rng.IntN(14); {
	case p.DeletionTimestamp != nil:
		m.s.FinishPod(p.Namespace, p.Name)
	case n == 0:
		_ = m.s.Delete(p) // it exists
	case workloads.Terminated(p):
	case n == 1:
		m.retryAfter[NodeOf(p)] = m.s.Now.Add(time.Duration(m.rng.IntN(20)) * time.Second)
		m.editPod(p.Name, func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = corev1.PodFailed, nil })
	case n == 2:
		m.setReady(p.Name, false)
	case workloads.ReadySince(p) == nil:
		m.setReady(p.Name, true)
	}
}

// node is what the checks know about an observed node.
type node struct{ pods, available int }

func excluded(set *appsv1.DaemonSet, n *corev1.Node) bool {
	zone := set.Spec.Template.Spec.NodeSelector["zone"]
	return len(n.Spec.Taints) > 0 || zone != "" && n.Labels["zone"] != zone
}

func isAvailable(in Input, p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return p.DeletionTimestamp == nil &&
				in.Now.Unix() >= c.LastTransitionTime.Unix()+int64(in.Set.Spec.MinReadySeconds)
		}
	}
	return false
}

// check checks one decision.
func (m *sim) check(in Input, out workloads.Decision[appsv1.DaemonSetStatus]) {
	nodes := map[string]*node{}
	wanted := map[string]bool{}
	for _, n := range in.Nodes {
		nodes[n.Name], wanted[n.Name] = &node{}, !excluded(in.Set, n)
	}
	for _, p := range in.Pods {
		if n := nodes[NodeOf(p)]; n != nil && p.DeletionTimestamp == nil && !workloads.Terminated(p) {
			n.pods++
			if isAvailable(in, p) {
				n.available++
			}
		}
	}
	unavailable := 0
	for name, n := range nodes {
		if wanted[name] && n.available == 0 {
			unavailable++
		}
	}
	stopped := 0
	for _, w := range out.Writes {
		switch o := w.Object.(type) {
		case *corev1.Pod:
			stopped += m.checkPod(in, w.Verb, o, nodes[NodeOf(o)], wanted[NodeOf(o)])
		case *appsv1.ControllerRevision:
			m.checkRevision(in, w.Verb, o)
		}
	}
	r := in.Set.Spec.UpdateStrategy.RollingUpdate
	if r == nil || stopped == 0 {
		return
	}
	if budget := int(r.MaxUnavailable.IntVal); unavailable+stopped > max(budget, 1) && r.MaxSurge.IntVal == 0 {
		m.violated("D3", "%d stopped, %d unavailable before, budget %d", stopped, unavailable, budget)
	} else if r.MaxSurge.IntVal > 0 {
		m.violated("D3", "%d stopped while surging", stopped)
	}
}

// checkPod checks the write of a pod. It returns 1 if it leaves a node that should run a pod without an available one.
func (m *sim) checkPod(in Input, verb workloads.Verb, p *corev1.Pod, n *node, wanted bool) (stopped int) {
	switch {
	case n == nil:
	case verb == workloads.Create:
		r := in.Set.Spec.UpdateStrategy.RollingUpdate
		if n.pods++; n.pods > 2 || n.pods == 2 && (r == nil || r.MaxSurge.IntVal == 0) {
			m.violated("D1", "node %s gets pod number %d", NodeOf(p), n.pods)
		}
		if !wanted {
			m.violated("D2", "a pod is created on node %s", NodeOf(p))
		}
	case verb == workloads.Delete && !workloads.Terminated(p):
		if n.pods--; isAvailable(in, p) {
			n.available--
			if wanted && n.available == 0 {
				return 1
			}
		}
	case verb == workloads.Delete && p.Status.Phase == corev1.PodFailed:
		newest := p.Spec.Containers[0].Image == in.Set.Spec.Template.Spec.Containers[0].Image
		if wanted && newest && p.DeletionTimestamp == nil && in.Now.Before(m.retryAfter[NodeOf(p)]) &&
			in.Set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			m.violated("D4", "failed pod %s is deleted in its back-off", p.Name)
		}
	}
	return 0
}

func (m *sim) checkRevision(in Input, verb workloads.Verb, r *appsv1.ControllerRevision) {
	if verb != workloads.Delete {
		return
	}
	for _, p := range in.Pods {
		if metav1.IsControlledBy(p, in.Set) &&
			p.Labels["controller-revision-hash"] == r.Labels["controller-revision-hash"] {
			m.violated("D5", "revision %s of pod %s is deleted", r.Name, p.Name)
		}
	}
}

// settle ends all failures and checks that the set becomes stable.
func (m *sim) settle() {
	m.s.Reject, m.e.Kill = nil, nil
	m.setImage("last")
	unchanged := 0
	for range 200 {
		before := m.pods() + summary(m.set().Status)
		m.s.Now = m.s.Now.Add(10 * time.Second)
		m.e.View.CatchUp()
		_, _ = m.sync() // conflicts are retried
		m.kubelets()
		if unchanged++; m.pods()+summary(m.set().Status) != before {
			unchanged = 0
		}
		if unchanged == 3 {
			m.checkStable()
			return
		}
	}
	m.violated("D6", "the set does not become stable: %s", m.pods())
}

func (m *sim) checkStable() {
	set := m.set()
	rolls := set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType
	desired, updated, placed := 0, 0, map[string]int{}
	for _, p := range workloadstest.List[*corev1.Pod](m.s) {
		placed[NodeOf(p)]++
		if p.Spec.Containers[0].Image == "last" {
			updated++
		} else if rolls {
			m.violated("D6", "pod %s is not updated: %s", p.Name, m.pods())
		}
	}
	for _, n := range workloadstest.List[*corev1.Node](m.s) {
		if excluded(set, n) {
			continue
		}
		if desired++; placed[n.Name] != 1 {
			m.violated("D6", "%d pods on node %s: %s", placed[n.Name], n.Name, m.pods())
		}
	}
	s := set.Status
	if int(s.DesiredNumberScheduled) != desired || int(s.NumberAvailable) != desired || s.NumberUnavailable != 0 ||
		s.ObservedGeneration != set.Generation {
		m.violated("D6", "status %s with %d nodes", summary(s), desired)
	}
	if rolls && (updated < desired || int(s.UpdatedNumberScheduled) != desired) {
		m.violated("D6", "pods %s are not updated, status %s", m.pods(), summary(s))
	}
}
