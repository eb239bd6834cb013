package placement

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// topologyPair is all nodes with one value of one label.
type topologyPair struct{ key, value string }

// affinityCounts is where the pods are that a pod must be near to or apart from, and
// that want it apart from them.
type affinityCounts struct {
	affinity             map[topologyPair]int // pods that match every term of the pod's affinity, by each term's place
	antiAffinity         map[topologyPair]int // pods that match one of the pod's anti-affinity terms
	existingAntiAffinity map[topologyPair]int // pods with an anti-affinity term that matches the pod
}

func (c *affinityCounts) clone() affinityCounts {
	return affinityCounts{maps.Clone(c.affinity), maps.Clone(c.antiAffinity), maps.Clone(c.existingAntiAffinity)}
}

func (q *attempt) countAffinity() affinityCounts {
	c := affinityCounts{map[topologyPair]int{}, map[topologyPair]int{}, map[topologyPair]int{}}
	wants := len(q.terms.affinity)+len(q.terms.antiAffinity) > 0
	for _, name := range q.cluster.names {
		at := q.cluster.nodes[name]
		others := at.podsWithAffinity
		if wants {
			others = at.pods
		}
		for _, other := range others {
			c.count(q, at, other, 1)
		}
	}
	return c
}

// count adds a pod on a node to the company, or takes it out. A place that is
// empty again is not in the maps.
func (c *affinityCounts) count(q *attempt, at *nodeInfo, other *podInfo, by int) {
	names := q.cluster.namespaces
	if matchesAll(q.terms.affinity, other.pod, names) {
		for _, t := range q.terms.affinity {
			changeCount(c.affinity, at, t.topologyKey, by)
		}
	}
	for _, t := range q.terms.antiAffinity {
		if t.matches(other.pod, names) {
			changeCount(c.antiAffinity, at, t.topologyKey, by)
		}
	}
	for _, t := range other.terms.antiAffinity {
		if t.matches(q.pod, names) {
			changeCount(c.existingAntiAffinity, at, t.topologyKey, by)
		}
	}
}

func changeCount(counts map[topologyPair]int, at *nodeInfo, key string, by int) {
	value, ok := at.Labels[key]
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

func (q *attempt) filterInterPodAffinity(at *nodeInfo) *Rejection {
	if !q.satisfiesAffinity(at) {
		return &Rejection{[]string{reasonPodAffinity}, FilterInterPodAffinity, true}
	}
	for _, t := range q.terms.antiAffinity {
		if value, ok := at.Labels[t.topologyKey]; ok && q.affinity.antiAffinity[topologyPair{t.topologyKey, value}] > 0 {
			return &Rejection{[]string{reasonPodAntiAffinity}, FilterInterPodAffinity, false}
		}
	}
	for p := range q.affinity.existingAntiAffinity {
		if value, ok := at.Labels[p.key]; ok && value == p.value {
			return &Rejection{[]string{reasonExistingAntiAffinity}, FilterInterPodAffinity, false}
		}
	}
	return nil
}

// satisfiesAffinity: the node is in a place of every affinity term. The first of a group
// of pods that want to be near each other may be anywhere.
func (q *attempt) satisfiesAffinity(at *nodeInfo) bool {
	all := true
	for _, t := range q.terms.affinity {
		value, ok := at.Labels[t.topologyKey]
		if !ok {
			return false
		}
		all = all && q.affinity.affinity[topologyPair{t.topologyKey, value}] > 0
	}
	return all || len(q.affinity.affinity) == 0 && matchesAll(q.terms.affinity, q.pod, q.cluster.namespaces)
}
