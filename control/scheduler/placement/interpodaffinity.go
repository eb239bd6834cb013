package placement

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// topologyPair identifies the nodes with one value of a label.
type topologyPair struct{ key, value string }

// affinityCounts are the numbers of pods per topology domain that matter for the required inter-pod
// affinity of the scheduled pod.
type affinityCounts struct {
	// pods that match all affinity terms of the scheduled pod, by the topology key of each term
	affinity             map[topologyPair]int
	antiAffinity         map[topologyPair]int // pods that match an anti-affinity term of the scheduled pod
	existingAntiAffinity map[topologyPair]int // pods with an anti-affinity term that matches the scheduled pod
	// skipped: neither the scheduled pod nor a pod on a node has a term that matters. As in upstream, whose plugin is
	// skipped then, those of nominated pods do not matter either.
	skipped bool
}

func (c *affinityCounts) clone() affinityCounts {
	return affinityCounts{maps.Clone(c.affinity), maps.Clone(c.antiAffinity), maps.Clone(c.existingAntiAffinity),
		c.skipped}
}

func (a *attempt) countAffinity() affinityCounts {
	c := affinityCounts{map[topologyPair]int{}, map[topologyPair]int{}, map[topologyPair]int{}, false}
	hasTerms := len(a.terms.affinity)+len(a.terms.antiAffinity) > 0
	for _, name := range a.cluster.names {
		node := a.cluster.nodes[name]
		others := node.podsWithAffinity
		if hasTerms {
			others = node.pods
		}
		for _, other := range others {
			c.count(a, node, other, 1)
		}
	}
	c.skipped = !hasTerms && len(c.existingAntiAffinity) == 0
	return c
}

// count adds (by > 0) or removes (by < 0) a pod on a node. Domains without pods are not in the
// maps.
func (c *affinityCounts) count(a *attempt, node *nodeInfo, other *podInfo, by int) {
	if c.skipped {
		return
	}
	names := a.cluster.namespaces
	if matchesAll(a.terms.affinity, other.pod, names) {
		for _, t := range a.terms.affinity {
			changeCount(c.affinity, node, t.topologyKey, by)
		}
	}
	for _, t := range a.terms.antiAffinity {
		if t.matches(other.pod, names) {
			changeCount(c.antiAffinity, node, t.topologyKey, by)
		}
	}
	for _, t := range other.terms.antiAffinity {
		if t.matches(a.pod, names) {
			changeCount(c.existingAntiAffinity, node, t.topologyKey, by)
		}
	}
}

func changeCount(counts map[topologyPair]int, node *nodeInfo, key string, by int) {
	value, ok := node.Labels[key]
	if !ok {
		return
	}
	p := topologyPair{key, value}
	if counts[p] += by; counts[p] <= 0 {
		delete(counts, p)
	}
}

func matchesAll(list []affinityTerm, pod *corev1.Pod, namespaces map[string]labels.Set) bool {
	for _, t := range list {
		if !t.matches(pod, namespaces) {
			return false
		}
	}
	return len(list) > 0
}

func (a *attempt) filterInterPodAffinity(node *nodeInfo) *Rejection {
	if !a.satisfiesAffinity(node) {
		return &Rejection{[]string{reasonPodAffinity}, FilterInterPodAffinity, true}
	}
	for _, t := range a.terms.antiAffinity {
		if value, ok := node.Labels[t.topologyKey]; ok &&
			a.affinity.antiAffinity[topologyPair{t.topologyKey, value}] > 0 {
			return &Rejection{[]string{reasonPodAntiAffinity}, FilterInterPodAffinity, false}
		}
	}
	for p := range a.affinity.existingAntiAffinity {
		if value, ok := node.Labels[p.key]; ok && value == p.value {
			return &Rejection{[]string{reasonExistingAntiAffinity}, FilterInterPodAffinity, false}
		}
	}
	return nil
}

// satisfiesAffinity reports whether the node is in a matching domain for every affinity term. The
// first pod of a group with affinity to itself may run on any node that has the topology keys.
func (a *attempt) satisfiesAffinity(node *nodeInfo) bool {
	all := true
	for _, t := range a.terms.affinity {
		value, ok := node.Labels[t.topologyKey]
		if !ok {
			return false
		}
		all = all && a.affinity.affinity[topologyPair{t.topologyKey, value}] > 0
	}
	return all || len(a.affinity.affinity) == 0 && matchesAll(a.terms.affinity, a.pod, a.cluster.namespaces)
}
