package placement

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// place is all nodes with one value of one label.
type place struct{ key, value string }

// company is where the pods are that a pod must be near to or apart from, and
// that want it apart from them.
type company struct {
	near        map[place]int // pods that match every term of the pod's affinity, by each term's place
	apart       map[place]int // pods that match one of the pod's anti-affinity terms
	othersApart map[place]int // pods with an anti-affinity term that matches the pod
}

func (c *company) clone() company {
	return company{maps.Clone(c.near), maps.Clone(c.apart), maps.Clone(c.othersApart)}
}

func (q *question) countCompany() company {
	c := company{map[place]int{}, map[place]int{}, map[place]int{}}
	wants := len(q.terms.near)+len(q.terms.apart) > 0
	for _, name := range q.cluster.names {
		at := q.cluster.nodes[name]
		others := at.affine
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
func (c *company) count(q *question, at *node, other *subject, by int) {
	names := q.cluster.namespaces
	if matchesAll(q.terms.near, other.pod, names) {
		for _, t := range q.terms.near {
			change(c.near, at, t.topologyKey, by)
		}
	}
	for _, t := range q.terms.apart {
		if t.matches(other.pod, names) {
			change(c.apart, at, t.topologyKey, by)
		}
	}
	for _, t := range other.terms.apart {
		if t.matches(q.pod, names) {
			change(c.othersApart, at, t.topologyKey, by)
		}
	}
}

func change(counts map[place]int, at *node, key string, by int) {
	value, ok := at.Labels[key]
	if !ok {
		return
	}
	p := place{key, value}
	if counts[p] += by; counts[p] <= 0 {
		delete(counts, p)
	}
}

func matchesAll(list []term, pod *corev1.Pod, namespaces map[string]labels.Set) bool {
	for _, t := range list {
		if !t.matches(pod, namespaces) {
			return false
		}
	}
	return len(list) > 0
}

func (q *question) refusalByCompany(at *node) *Refusal {
	if !q.isNear(at) {
		return &Refusal{[]string{reasonNear}, RulePodAffinity, true}
	}
	for _, t := range q.terms.apart {
		if value, ok := at.Labels[t.topologyKey]; ok && q.company.apart[place{t.topologyKey, value}] > 0 {
			return &Refusal{[]string{reasonApart}, RulePodAffinity, false}
		}
	}
	for p := range q.company.othersApart {
		if value, ok := at.Labels[p.key]; ok && value == p.value {
			return &Refusal{[]string{reasonOthersApart}, RulePodAffinity, false}
		}
	}
	return nil
}

// isNear: the node is in a place of every affinity term. The first of a group
// of pods that want to be near each other may be anywhere.
func (q *question) isNear(at *node) bool {
	all := true
	for _, t := range q.terms.near {
		value, ok := at.Labels[t.topologyKey]
		if !ok {
			return false
		}
		all = all && q.company.near[place{t.topologyKey, value}] > 0
	}
	return all || len(q.company.near) == 0 && matchesAll(q.terms.near, q.pod, q.cluster.namespaces)
}
