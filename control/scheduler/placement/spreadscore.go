package placement

import (
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// scoredSpread is a topology spread constraint that only affects the score.
type scoredSpread struct {
	spreadConstraint

	weight  float64        // of a pod, larger with more domains
	domains map[string]int // matching pods by domain; not used for the host name, which each node has for itself
}

// scoreTopologySpread scores the ScheduleAnyway constraints. A pod without constraints is spread over nodes and zones
// together with the pods of its Services and of its controller.
func (a *attempt) scoreTopologySpread(nodes []*nodeInfo) []int64 {
	constraints := a.scoredSpreads()
	if len(constraints) == 0 {
		return make([]int64, len(nodes))
	}
	// A node without a zone can still be scored by the default constraints.
	explicit := len(a.pod.Spec.TopologySpreadConstraints) > 0
	ignored := make([]bool, len(nodes))
	scored := 0
	for i, node := range nodes {
		ignored[i] = explicit && !constraints[0].hasKeys(node)
		if !ignored[i] {
			scored++
		}
	}
	for i := range constraints {
		a.countDomains(&constraints[i], nodes, ignored, scored)
	}
	raw, lowest, highest := make([]int64, len(nodes)), int64(math.MaxInt64), int64(0)
	for i, node := range nodes {
		if ignored[i] {
			continue
		}
		sum := 0.0
		for j := range constraints {
			c := &constraints[j]
			domain, ok := node.Labels[c.TopologyKey]
			if !ok {
				continue
			}
			n := c.domains[domain]
			if c.TopologyKey == corev1.LabelHostname {
				n = c.matching(a, node)
			}
			sum += float64(n)*c.weight + float64(c.MaxSkew-1)
		}
		raw[i] = int64(math.Round(sum))
		lowest, highest = min(lowest, raw[i]), max(highest, raw[i])
	}
	for i, x := range raw {
		switch {
		case ignored[i]:
			raw[i] = 0
		case highest == 0:
			raw[i] = maxNodeScore
		default:
			raw[i] = maxNodeScore * (highest + lowest - x) / highest
		}
	}
	return raw
}

// scoredSpreads returns the constraints without counts.
func (a *attempt) scoredSpreads() (out []scoredSpread) {
	if len(a.pod.Spec.TopologySpreadConstraints) > 0 {
		for _, s := range a.spreadConstraints(corev1.ScheduleAnyway) {
			out = append(out, scoredSpread{spreadConstraint: s})
		}
		return out
	}
	if a.siblings == nil || a.siblings.Empty() {
		return nil
	}
	for _, c := range []corev1.TopologySpreadConstraint{
		{TopologyKey: corev1.LabelHostname, MaxSkew: 3}, {TopologyKey: corev1.LabelTopologyZone, MaxSkew: 5},
	} {
		out = append(out, scoredSpread{spreadConstraint: spreadConstraint{TopologySpreadConstraint: c,
			podSelector: a.siblings}})
	}
	return out
}

// countDomains counts the matching pods in the domains that scored nodes are in.
func (a *attempt) countDomains(c *scoredSpread, nodes []*nodeInfo, ignored []bool, scored int) {
	if c.TopologyKey == corev1.LabelHostname {
		c.weight = math.Log(float64(scored + 2))
		return
	}
	c.domains = map[string]int{}
	for i, node := range nodes {
		if !ignored[i] {
			c.domains[node.Labels[c.TopologyKey]] = 0
		}
	}
	c.weight = math.Log(float64(len(c.domains) + 2))
	for _, name := range a.cluster.names {
		node := a.cluster.nodes[name]
		domain := node.Labels[c.TopologyKey]
		if _, counts := c.domains[domain]; counts && c.includes(a.pod, node) {
			c.domains[domain] += c.matching(a, node)
		}
	}
}

// matching returns the number of pods on a node that the constraint selects.
func (s *spreadConstraint) matching(a *attempt, node *nodeInfo) (n int) {
	if s.podSelector.Empty() {
		return 0
	}
	for _, other := range node.pods {
		if other.pod.DeletionTimestamp == nil && other.pod.Namespace == a.pod.Namespace &&
			s.podSelector.Matches(labels.Set(other.pod.Labels)) {
			n++
		}
	}
	return n
}

// Siblings returns the selector of the pods that a pod is spread with by default: those that match the selectors of all
// its Services and of its controller. services are those of the pod's namespace. controller is the selector of the
// ReplicaSet, StatefulSet or ReplicationController that controls the pod, or nil. Siblings returns nil if there is no
// selector.
func Siblings(pod *corev1.Pod, services []*corev1.Service, controller *metav1.LabelSelector) labels.Selector {
	set := labels.Set{}
	for _, s := range services {
		if s.Spec.Selector != nil && labels.SelectorFromValidatedSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			maps.Copy(set, s.Spec.Selector)
		}
	}
	out := labels.SelectorFromValidatedSet(set)
	if controller != nil {
		more, err := metav1.LabelSelectorAsSelector(controller)
		if requirements, selectable := more.Requirements(); err == nil && selectable {
			out = out.Add(requirements...)
		}
	}
	if out.Empty() {
		return nil
	}
	return out
}
