package placement

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"berth/admission"
)

// spreadConstraint is a topology spread constraint with the number of matching pods per domain.
// Domains are the values of the topology key on the included nodes.
type spreadConstraint struct {
	corev1.TopologySpreadConstraint

	podSelector  labels.Selector
	requiredKeys []string // a node without all of these keys is not included
	selfMatch    int      // 1 if the pod matches its own constraint
	counts       map[string]int
}

// spreadConstraints returns the pod's constraints of one kind without counts.
func (a *attempt) spreadConstraints(kind corev1.UnsatisfiableConstraintAction) (out []spreadConstraint) {
	var keys []string
	for _, c := range a.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == kind {
			keys = append(keys, c.TopologyKey)
		}
	}
	for _, c := range a.pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable != kind {
			continue
		}
		s := spreadConstraint{
			TopologySpreadConstraint: c, requiredKeys: keys,
			podSelector: withLabelKeys(labelSelector(c.LabelSelector), a.pod, c.MatchLabelKeys, selection.In),
		}
		if s.podSelector.Matches(labels.Set(a.pod.Labels)) {
			s.selfMatch = 1
		}
		out = append(out, s)
	}
	return out
}

// countSpread returns the DoNotSchedule constraints with their counts.
func (a *attempt) countSpread() []spreadConstraint {
	out := a.spreadConstraints(corev1.DoNotSchedule)
	for i := range out {
		s := &out[i]
		s.counts = map[string]int{}
		for _, name := range a.cluster.names {
			if node := a.cluster.nodes[name]; s.includes(a.pod, node) {
				s.counts[node.Labels[s.TopologyKey]] += s.matching(a, node)
			}
		}
	}
	return out
}

// hasKeys reports whether the node has the topology keys of all constraints.
func (s *spreadConstraint) hasKeys(node *nodeInfo) bool {
	for _, key := range s.requiredKeys {
		if _, ok := node.Labels[key]; !ok {
			return false
		}
	}
	return true
}

// includes reports whether the node and its pods count.
func (s *spreadConstraint) includes(pod *corev1.Pod, node *nodeInfo) bool {
	if !s.hasKeys(node) {
		return false
	}
	byAffinity := s.NodeAffinityPolicy == nil || *s.NodeAffinityPolicy == corev1.NodeInclusionPolicyHonor
	if byAffinity && !admission.MatchesSelectors(node.Node, pod) {
		return false
	}
	if s.NodeTaintsPolicy == nil || *s.NodeTaintsPolicy == corev1.NodeInclusionPolicyIgnore {
		return true
	}
	for _, t := range node.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, pod.Spec.Tolerations) {
			return false
		}
	}
	return true
}

func (s *spreadConstraint) count(a *attempt, node *nodeInfo, other *podInfo, by int) {
	if other.pod.DeletionTimestamp == nil && other.pod.Namespace == a.pod.Namespace &&
		s.podSelector.Matches(labels.Set(other.pod.Labels)) && s.includes(a.pod, node) {
		s.counts[node.Labels[s.TopologyKey]] += by
	}
}

// minMatch returns the number of matching pods in the domain with the fewest. It is 0 with fewer
// than minDomains domains.
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

func (a *attempt) filterTopologySpread(node *nodeInfo) *Rejection {
	for i := range a.spread {
		s := &a.spread[i]
		domain, ok := node.Labels[s.TopologyKey]
		if !ok {
			return &Rejection{[]string{reasonSpreadLabel}, FilterPodTopologySpread, true}
		}
		if s.counts[domain]+s.selfMatch-s.minMatch() > int(s.MaxSkew) {
			return &Rejection{[]string{reasonSpread}, FilterPodTopologySpread, false}
		}
	}
	return nil
}
