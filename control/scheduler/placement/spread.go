package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"berth/admission"
)

// spreadConstraint is one of a pod's spread constraints, with how many matching pods each
// domain has. Domains are the values of the topology key on the nodes that count.
type spreadConstraint struct {
	corev1.TopologySpreadConstraint

	podSelector  labels.Selector
	requiredKeys []string // a node without one of them counts for no constraint
	selfMatch    int      // 1: the pod matches its own constraint
	counts       map[string]int
}

// countSpread compiles and counts the pod's constraints of one kind.
func (q *attempt) countSpread(kind corev1.UnsatisfiableConstraintAction) []spreadConstraint {
	var out []spreadConstraint
	var keys []string
	for _, c := range q.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == kind {
			keys = append(keys, c.TopologyKey)
		}
	}
	for _, c := range q.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != kind {
			continue
		}
		s := spreadConstraint{
			TopologySpreadConstraint: c, requiredKeys: keys, counts: map[string]int{},
			podSelector: withLabelKeys(labelSelector(c.LabelSelector), q.pod, c.MatchLabelKeys, selection.In),
		}
		if s.podSelector.Matches(labels.Set(q.pod.Labels)) {
			s.selfMatch = 1
		}
		for _, name := range q.cluster.names {
			at := q.cluster.nodes[name]
			if !s.includes(q.pod, at) {
				continue
			}
			s.counts[at.Labels[c.TopologyKey]] += 0
			for _, other := range at.pods {
				s.count(q, at, other, 1)
			}
		}
		out = append(out, s)
	}
	return out
}

// includes reports whether the node's domain and pods count.
func (s *spreadConstraint) includes(pod *corev1.Pod, at *nodeInfo) bool {
	for _, key := range s.requiredKeys {
		if _, ok := at.Labels[key]; !ok {
			return false
		}
	}
	byAffinity := s.NodeAffinityPolicy == nil || *s.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
	if byAffinity && !admission.MatchesSelectors(at.Node, pod) {
		return false
	}
	if s.NodeTaintsPolicy == nil || *s.NodeTaintsPolicy == corev1.NodeInclusionPolicyIgnore {
		return true
	}
	for _, t := range at.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, pod.Spec.Tolerations) {
			return false
		}
	}
	return true
}

func (s *spreadConstraint) count(q *attempt, at *nodeInfo, other *podInfo, by int) {
	if other.pod.DeletionTimestamp == nil && other.pod.Namespace == q.pod.Namespace &&
		s.podSelector.Matches(labels.Set(other.pod.Labels)) && s.includes(q.pod, at) {
		s.counts[at.Labels[s.TopologyKey]] += by
	}
}

// minMatch is the number of matching pods in the emptiest domain; too few domains
// make an empty one thought of.
func (s *spreadConstraint) minMatch() int {
	if s.MinDomains != nil && len(s.counts) < int(*s.MinDomains) || len(s.counts) == 0 {
		return 0
	}
	out := -1
	for _, n := range s.counts {
		if out < 0 || n < out {
			out = n
		}
	}
	return out
}

func (q *attempt) filterTopologySpread(at *nodeInfo) *Rejection {
	for i := range q.spread {
		s := &q.spread[i]
		domain, ok := at.Labels[s.TopologyKey]
		if !ok {
			return &Rejection{[]string{reasonSpreadLabel}, FilterPodTopologySpread, true}
		}
		if s.counts[domain]+s.selfMatch-s.minMatch() > int(s.MaxSkew) {
			return &Rejection{[]string{reasonSpread}, FilterPodTopologySpread, false}
		}
	}
	return nil
}
