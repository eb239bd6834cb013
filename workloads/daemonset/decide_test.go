package daemonset

import (
	"errors"
	"slices"
	"strconv"
	"strings"
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

func TestOnePodOnEachNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 2, nil)
	w.run()
	w.check("pods", w.pods(), "n0:a n1:a")
	w.check("status", summary(w.set().Status),
		"desired 2 current 2 misscheduled 0 ready 2 available 2 unavailable 0 updated 2")
	p := workloadstest.List[*corev1.Pod](w.s)[0]
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || len(terms[0].MatchFields) != 1 || terms[0].MatchFields[0].Key != "metadata.name" {
		t.Errorf("node selector terms %v", terms)
	}
	r := workloadstest.List[*appsv1.ControllerRevision](w.s)[0]
	w.check("revision", r.Name, setName+"-"+p.Labels["controller-revision-hash"])
	w.check("event", w.s.Events[0].Reason, "SuccessfulCreate")
	if !strings.HasPrefix(p.Name, setName+"-") || !strings.HasPrefix(w.s.Events[0].Message, "Created pod: agent-") {
		t.Errorf("pod %s, event %q", p.Name, w.s.Events[0].Message)
	}
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	w.run()
	w.check("pods", w.pods(), "n0:a n1:a n2:a")
}

func TestTolerationsAreAdded(t *testing.T) {
	t.Parallel()
	keys := func(spec corev1.PodSpec) string {
		var out []string
		for _, toleration := range withTolerations(&spec) {
			key := strings.TrimPrefix(toleration.Key, "node.kubernetes.io/")
			out = append(out, key+":"+string(toleration.Effect))
		}
		return strings.Join(out, " ")
	}
	const added = "not-ready:NoExecute unreachable:NoExecute disk-pressure:NoSchedule memory-pressure:NoSchedule " +
		"pid-pressure:NoSchedule unschedulable:NoSchedule"
	own := corev1.Toleration{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists,
		Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"none":         {corev1.PodSpec{}, added},
		"host network": {corev1.PodSpec{HostNetwork: true}, added + " network-unavailable:NoSchedule"},
		"an own one with the same key is replaced": {corev1.PodSpec{Tolerations: []corev1.Toleration{own}}, added},
		"another own one": {corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "x"}}},
			"x: " + added},
	} {
		if got := keys(c.spec); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	spec := corev1.PodSpec{Tolerations: []corev1.Toleration{own}}
	if out := withTolerations(&spec); out[0].TolerationSeconds != nil || spec.Tolerations[0].TolerationSeconds == nil {
		t.Errorf("tolerations %v of %v", out, spec.Tolerations)
	}
}

func TestShouldRun(t *testing.T) {
	t.Parallel()
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: effect}} }
	}
	selecting := func(value string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"a": value} }
	}
	for name, c := range map[string]struct {
		set       func(*corev1.PodSpec)
		node      func(*corev1.Node)
		run, stay bool
	}{
		"plain node":               {nil, nil, true, true},
		"other node name":          {func(s *corev1.PodSpec) { s.NodeName = "other" }, nil, false, false},
		"same node name":           {func(s *corev1.PodSpec) { s.NodeName = "n" }, nil, true, true},
		"node selector":            {selecting("c"), nil, false, false},
		"matching node selector":   {selecting("b"), nil, true, true},
		"affinity to another node": {func(s *corev1.PodSpec) { s.Affinity = pinned(nil, "other") }, nil, false, false},
		"NoSchedule":               {nil, taint(corev1.TaintEffectNoSchedule), false, true},
		"NoExecute":                {nil, taint(corev1.TaintEffectNoExecute), false, false},
		"PreferNoSchedule":         {nil, taint(corev1.TaintEffectPreferNoSchedule), true, true},
		"cordoned": {nil, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		}, true, true},
		"tolerated": {func(s *corev1.PodSpec) {
			s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}, taint(corev1.TaintEffectNoExecute), true, true},
	} {
		set, node := &appsv1.DaemonSet{}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
			Labels: map[string]string{"a": "b"}}}
		if c.set != nil {
			c.set(&set.Spec.Template.Spec)
		}
		if c.node != nil {
			c.node(node)
		}
		if run, stay := ShouldRun(set, node); run != c.run || stay != c.stay {
			t.Errorf("%s: run %v, stay %v", name, run, stay)
		}
	}
}

func TestPodsLeaveExcludedNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 3, nil)
	w.run()
	w.editNode("n0", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
	})
	w.editNode("n1", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	})
	w.run()
	w.check("pods", w.pods(), "n1:a n2:a")
	w.check("status", summary(w.set().Status),
		"desired 1 current 1 misscheduled 1 ready 1 available 1 unavailable 0 updated 1")
}

// TestRejectedPodsDoNotPreventDeletions checks that a quota that rejects the pod of one node keeps no pod on another.
func TestRejectedPodsDoNotPreventDeletions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 2, nil)
	exclude := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute}}
	}
	w.editNode("n0", exclude)
	w.run()
	w.check("pods", w.pods(), "n1:a")
	w.editNode("n0", func(n *corev1.Node) { n.Spec.Taints = nil })
	w.editNode("n1", exclude)
	w.s.Reject = func(write workloads.Write) error {
		if write.Verb == workloads.Create {
			return errors.New("exceeded quota")
		}
		return nil
	}
	w.e.View.CatchUp()
	if _, err := w.sync(); err == nil {
		t.Error("no write was rejected")
	}
	w.check("pods", w.pods(), "n1:a-")
	w.s.Reject = nil
	w.run()
	w.check("pods", w.pods(), "n0:a")
}

func TestPendingPodOfDeletedNodeIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 1, nil)
	w.syncUntilQuiet()
	node, _ := workloadstest.Get[*corev1.Node](w.s, "", "n0")
	if err := w.s.Delete(node); err != nil {
		t.Fatal(err)
	}
	w.syncUntilQuiet()
	if left := workloadstest.List[*corev1.Pod](w.s); len(left) > 0 {
		t.Errorf("pods %v", left)
	}
}

func TestRollingUpdate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strategy appsv1.DaemonSetUpdateStrategy
		first    string
		end      string
	}{
		"one at a time": {rolling(intstr.FromInt32(1), intstr.FromInt32(0)), "n0:a- n1:a n2:a", "n0:b n1:b n2:b"},
		"percentage, rounded up": {rolling(intstr.FromString("50%"), intstr.FromInt32(0)), "n0:a- n1:a- n2:a",
			"n0:b n1:b n2:b"},
		"surge": {rolling(intstr.FromInt32(0), intstr.FromInt32(1)), "n0:a n0:b! n1:a n2:a", "n0:b n1:b n2:b"},
		"surge percentage, rounded up": {rolling(intstr.FromInt32(0), intstr.FromString("50%")),
			"n0:a n0:b! n1:a n1:b! n2:a", "n0:b n1:b n2:b"},
		"on delete": {appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}, "n0:a n1:a n2:a",
			"n0:a n1:a n2:a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), 3, func(set *appsv1.DaemonSet) { set.Spec.UpdateStrategy = c.strategy })
			w.run()
			w.setImage("b")
			w.syncUntilQuiet()
			got := strings.Fields(w.pods())
			slices.Sort(got) // pods of a node have random names
			w.check("pods", strings.Join(got, " "), c.first)
			w.run()
			w.check("pods in the end", w.pods(), c.end)
		})
	}
}

func TestUnavailableOldPodsAreReplacedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 3, nil)
	w.run()
	w.setReady(w.podOn("n2"), false)
	w.setImage("b")
	w.syncUntilQuiet()
	w.check("pods", w.pods(), "n0:a n1:a n2:a!-")
}

func TestExcludedNodesDoNotCountAsUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 4, func(set *appsv1.DaemonSet) {
		set.Spec.Template.Spec.NodeSelector = map[string]string{"zone": "1"}
	})
	w.run()
	w.setImage("b")
	w.run()
	w.check("pods", w.pods(), "n1:b n3:b")
}

// TestSurgeReplacesTerminatingPod: a node has no pod while a deleted one terminates, unless maxSurge allows a second
// one.
func TestSurgeReplacesTerminatingPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(*appsv1.DaemonSet)
		want string
	}{"surge": {surging, "n0:a! n0:a-"}, "no surge": {nil, "n0:a-"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), 1, c.set)
			w.run()
			pod, _ := workloadstest.Get[*corev1.Pod](w.s, namespace, w.podOn("n0"))
			if err := w.s.Delete(pod); err != nil {
				t.Fatal(err)
			}
			w.syncUntilQuiet()
			got := strings.Fields(w.pods())
			slices.Sort(got)
			w.check("pods", strings.Join(got, " "), c.want)
		})
	}
}

// TestSurgeKeepsBackOffOfFailedPods: a failed pod that waits for its back-off gets no replacement.
func TestSurgeKeepsBackOffOfFailedPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 1, surging)
	w.run()
	w.retryAfter["n0"] = w.s.Now.Add(time.Minute)
	failed := w.podOn("n0")
	w.editPod(failed, func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = corev1.PodFailed, nil })
	w.syncUntilQuiet()
	w.check("pods in the back-off", w.pods(), "n0:a!")
	w.s.Now = w.retryAfter["n0"]
	w.syncUntilQuiet()
	w.check("pods after it", w.pods(), "n0:a!")
	if w.podOn("n0") == failed {
		t.Error("the failed pod is still there")
	}
}

// TestSurgeKeepsPodsOfTaintedNodes: a pod that may stay on a node where no new one may run is deleted when as many pods
// are available as are desired, or when it is not available.
func TestSurgeKeepsPodsOfTaintedNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		left, other bool // whether the pods of the two nodes are ready
		first       string
	}{
		"more are available":  {true, true, "n0:a- n1:a n1:b!"},
		"no other one":        {true, false, "n0:a n1:a!- n1:b!"},
		"it is not available": {false, true, "n0:a!- n1:a n1:b!"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixedRand(), 2, surging)
			w.run()
			w.editNode("n0", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
			})
			w.setReady(w.podOn("n0"), c.left)
			w.setReady(w.podOn("n1"), c.other)
			w.setImage("b")
			w.syncUntilQuiet()
			got := strings.Fields(w.pods())
			slices.Sort(got)
			w.check("pods", strings.Join(got, " "), c.first)
			w.run()
			w.check("pods in the end", w.pods(), "n1:b")
		})
	}
}

func TestSurgeWaitsForMinReadySeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 1, func(set *appsv1.DaemonSet) {
		surging(set)
		set.Spec.MinReadySeconds = 10
	})
	w.run()
	w.s.Now = begin.Add(time.Minute)
	w.setImage("b")
	w.syncUntilQuiet()
	w.kubelets()
	w.e.View.CatchUp()
	wake, err := w.sync()
	if err != nil || !wake.Equal(begin.Add(70*time.Second)) {
		t.Errorf("wake %v, err %v", wake, err)
	}
	if n := len(workloadstest.List[*corev1.Pod](w.s)); n != 2 {
		t.Errorf("%d pods", n)
	}
	w.s.Now = wake
	w.run()
	w.check("pods", w.pods(), "n0:b")
}

func TestTerminatedPodsAreRecreated(t *testing.T) {
	t.Parallel()
	for phase, reason := range map[corev1.PodPhase]string{
		corev1.PodFailed: "FailedDaemonPod", corev1.PodSucceeded: "SucceededDaemonPod",
	} {
		w := newWorld(t, fixedRand(), 1, nil)
		w.run()
		before := w.podOn("n0")
		w.editPod(before, func(p *corev1.Pod) { p.Status.Phase, p.Status.Conditions = phase, nil })
		if phase == corev1.PodFailed {
			w.retryAfter["n0"] = begin.Add(time.Second)
			w.e.View.CatchUp()
			if wake, err := w.sync(); err != nil || !wake.Equal(begin.Add(time.Second)) {
				t.Errorf("wake %v, err %v", wake, err)
			}
			w.check("pod in back-off", w.podOn("n0"), before)
			w.s.Now = begin.Add(time.Second)
		}
		w.run()
		if w.podOn("n0") == before {
			t.Errorf("the %s pod was not replaced", phase)
		}
		if !slices.ContainsFunc(w.s.Events, func(e workloadstest.RecordedEvent) bool { return e.Reason == reason }) {
			t.Errorf("no event %s in %v", reason, w.s.Events)
		}
	}
}

func TestExcessPodsAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 1, nil)
	w.run()
	w.s.Now = begin.Add(time.Minute)
	p, _ := workloadstest.Get[*corev1.Pod](w.s, namespace, w.podOn("n0"))
	kept := p.Name
	w.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "a-younger-one", Labels: p.Labels},
		Spec: p.Spec})
	w.run()
	w.check("pods", w.pods(), "n0:a")
	w.check("pod", w.podOn("n0"), kept)
}

// revisions describes the revisions by number.
func (w *world) revisions() string {
	list := workloadstest.List[*appsv1.ControllerRevision](w.s)
	slices.SortFunc(list, func(a, b *appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	var out []string
	for _, r := range list {
		template, err := workloads.RevisionTemplate(r)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, strconv.FormatInt(r.Revision, 10)+":"+template.Spec.Containers[0].Image)
	}
	return strings.Join(out, " ")
}

func TestRevisionsAndRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 1, func(set *appsv1.DaemonSet) { set.Spec.RevisionHistoryLimit = new(int32(1)) })
	for _, image := range []string{"a", "b"} {
		w.setImage(image)
		w.run()
	}
	w.check("revisions", w.revisions(), "1:a 2:b")
	w.setImage("a")
	w.run()
	w.check("revisions after the rollback", w.revisions(), "2:b 3:a")
	w.check("pods", w.pods(), "n0:a")
	w.setImage("c")
	w.run()
	w.check("revisions", w.revisions(), "3:a 4:c")
}

func TestCollisionOfRevisionNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixedRand(), 1, nil)
	taken := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"x":1}`)}}
	taken.Namespace, taken.Name = namespace, setName+"-"+workloads.Hash(w.set().Spec.Template, nil)
	w.create(taken)
	w.run()
	w.check("pods", w.pods(), "n0:a")
	if n := w.set().Status.CollisionCount; n == nil || *n != 1 {
		t.Errorf("collisions %v", n)
	}
}

// TestRevisionWithOtherDataOfSameTemplate: a revision that means the template, but is not written as this server writes
// it, is a duplicate if pods have it. They are kept.
func TestRevisionWithOtherDataOfSameTemplate(t *testing.T) {
	t.Parallel()
	for name, live := range map[string]bool{"of a pod": true, "of no pod": false} {
		w := newWorld(t, fixedRand(), 1, nil)
		w.run()
		exact := workloadstest.List[*appsv1.ControllerRevision](w.s)[0]
		other := exact.DeepCopy()
		other.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "other",
			OwnerReferences: exact.OwnerReferences,
			Labels:          map[string]string{"app": setName, appsv1.DefaultDaemonSetUniqueLabelKey: "other"}}
		other.Revision, other.Data.Raw = 0, append([]byte(" "), exact.Data.Raw...)
		w.create(other)
		pod := workloadstest.List[*corev1.Pod](w.s)[0]
		if live {
			w.editPod(pod.Name, func(p *corev1.Pod) {
				p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "other"
			})
		}
		w.run()
		after := workloadstest.List[*corev1.Pod](w.s)
		if len(after) != 1 || after[0].UID != pod.UID ||
			after[0].Labels[appsv1.DefaultDaemonSetUniqueLabelKey] !=
				exact.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] {
			t.Errorf("%s: the pod was replaced or has another hash than that of the exact revision", name)
		}
		if n := len(workloadstest.List[*appsv1.ControllerRevision](w.s)); n == 1 != live {
			t.Errorf("%s: got %d revisions", name, n)
		}
	}
}

// TestOldRevisionsAreNotDecoded: the memory that a decision needs does not grow with the data of old revisions.
func TestOldRevisionsAreNotDecoded(t *testing.T) {
	w := newWorld(t, fixedRand(), 1, nil)
	for i := range 10 {
		w.setImage("image" + strconv.Itoa(i))
		w.run()
	}
	in := Input{Now: w.s.Now, Set: w.set(), Nodes: workloadstest.List[*corev1.Node](w.s),
		Pods:      workloadstest.List[*corev1.Pod](w.s),
		Revisions: workloadstest.List[*appsv1.ControllerRevision](w.s)}
	allocations := func(revisions []*appsv1.ControllerRevision) float64 {
		in.Revisions = revisions
		return testing.AllocsPerRun(20, func() { Decide(in) })
	}
	slices.SortFunc(in.Revisions, func(a, b *appsv1.ControllerRevision) int { return int(b.Revision - a.Revision) })
	all := in.Revisions
	if one, many := allocations(all[:1]), allocations(all); many > one+5*float64(len(all)) {
		t.Errorf("%v allocations with %d revisions, %v with one", many, len(all), one)
	}
}
