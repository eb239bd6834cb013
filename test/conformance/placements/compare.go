package placements

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"berth/control/scheduler/placement"
)

// decision is what kube-scheduler has decided about a pod.
type decision struct {
	node      string                      // bound to; empty: none
	scores    map[string]map[string]int64 // weighted, by node and plugin; none if only one node was feasible
	message   string                      // why no node is feasible
	nominated string                      // afterwards, if not bound: by a preemption or before
	victims   []string                    // keys of the pods that a preemption deletes, sorted
}

// preempts reports whether other pods were preempted.
func (d *decision) preempts() bool { return strings.Contains(d.message, "preempting ") }

// state is what both schedulers know.
type state struct {
	*cluster
	pods  map[types.UID]*corev1.Pod // those on nodes
	gated *gatedPod                 // or nil
}

// placement returns the cluster as berth's scheduler has it.
func (s *state) placement() *placement.Cluster {
	c := placement.NewCluster()
	for _, ns := range s.namespaces {
		c.SetNamespace(ns.Name, ns.Labels)
	}
	for _, n := range s.nodes {
		c.SetNode(n)
	}
	for _, p := range s.pods {
		c.AddPod(p)
	}
	if s.gated != nil {
		c.Nominate(s.gated.pod.UID, s.gated.pod, s.gated.pod.Status.NominatedNodeName)
	}
	return c
}

func (s *state) related(pod *corev1.Pod) (out placement.Related) {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		return out
	}
	var services []*corev1.Service
	for _, service := range s.services {
		if service.Namespace == pod.Namespace {
			services = append(services, service)
		}
	}
	var selector *metav1.LabelSelector
	for _, set := range s.sets {
		if metav1.IsControlledBy(pod, set) {
			selector = set.Spec.Selector
		}
	}
	out.Siblings = placement.Siblings(pod, services, selector)
	return out
}

func (s *state) disruptionBudgets() (out []placement.DisruptionBudget) {
	for _, b := range s.budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			selector = labels.Nothing()
		}
		out = append(out, placement.DisruptionBudget{Namespace: b.Namespace, Selector: selector,
			DisruptionsAllowed: int(b.Status.DisruptionsAllowed)})
	}
	return out
}

// compare returns the differences between the decision of kube-scheduler and berth's, one per line, or "".
func (s *state) compare(pod *corev1.Pod, d decision) string {
	c, with := s.placement(), s.related(pod)
	if d.node != "" {
		return compareNodes(d, c.Scores(pod, with))
	}
	result := c.Schedule(pod, with)
	if result.Node != "" {
		return fmt.Sprintf("no node: %s, berth binds to %s\n", d.message, result.Node)
	}
	message := result.Message()
	p := c.Preempt(pod, result, s.disruptionBudgets(), with)
	if p.Message != "" {
		message += " preemption: " + p.Message
	}
	var victims []string
	for _, v := range p.Victims {
		victims = append(victims, key(v))
	}
	slices.Sort(victims)
	var out strings.Builder
	if message != d.message {
		fmt.Fprintf(&out, "- %s\n+ %s\n", d.message, message)
	}
	if nominated := p.Nominated(pod); nominated != d.nominated || !slices.Equal(victims, d.victims) {
		fmt.Fprintf(&out, "- nominated for %q, victims: %v\n+ nominated for %q, victims: %v\n", d.nominated, d.victims,
			nominated, victims)
	}
	return out.String()
}

// winners returns the nodes that a pod with a nominated node may get: that node if it is feasible, else those with the
// highest score.
func (s *state) winners(pod *corev1.Pod) (out []string) {
	c, with := s.placement(), s.related(pod)
	switch node := c.Schedule(pod, with).Node; node {
	case "":
		return nil
	case pod.Status.NominatedNodeName:
		return []string{node}
	}
	best := int64(-1)
	for node, plugins := range c.Scores(pod, with) {
		total := int64(0)
		for _, score := range plugins {
			total += score
		}
		if total > best {
			out, best = nil, total
		}
		if total == best {
			out = append(out, node)
		}
	}
	return out
}

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// compareNodes compares the feasible nodes, their scores and the winner.
func compareNodes(d decision, own map[string]map[string]int64) string {
	feasible := slices.Sorted(maps.Keys(d.scores))
	if len(feasible) == 0 {
		feasible = []string{d.node}
	}
	var out strings.Builder
	if mine := slices.Sorted(maps.Keys(own)); !slices.Equal(feasible, mine) {
		fmt.Fprintf(&out, "- feasible: %v\n+ feasible: %v\n", feasible, mine)
		return out.String()
	}
	totals, best := map[string]int64{}, int64(-1)
	for node, plugins := range own {
		for _, score := range plugins {
			totals[node] += score
		}
		best = max(best, totals[node])
	}
	if totals[d.node] != best {
		fmt.Fprintf(&out, "- binds to %s\n+ binds to a node with score %d, that has %d\n", d.node, best, totals[d.node])
	}
	for _, plugin := range slices.Sorted(maps.Keys(own[d.node])) {
		// kube-scheduler skips a plugin that would give all nodes the same score.
		skipped, same := true, true
		for node := range d.scores {
			_, scored := d.scores[node][plugin]
			skipped, same = skipped && !scored, same && own[node][plugin] == own[d.node][plugin]
		}
		for _, node := range feasible {
			if len(d.scores) > 0 && !(skipped && same) && d.scores[node][plugin] != own[node][plugin] {
				fmt.Fprintf(&out, "- %s scores %s %d\n+ %s scores %s %d\n", plugin, node, d.scores[node][plugin],
					plugin, node, own[node][plugin])
			}
		}
	}
	return out.String()
}
