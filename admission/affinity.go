package admission

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// affinity rejects a pod whose node selector or required node affinity does not match the labels of
// the node.
func affinity(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if MatchesSelectors(node, pod) {
		return nil
	}
	return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector", false)
}

// MatchesSelectors reports whether the node matches the nodeSelector and the required node affinity
// of the pod.
func MatchesSelectors(node Node, pod *corev1.Pod) bool {
	for key, want := range pod.Spec.NodeSelector {
		if have, ok := node.Labels[key]; !ok || have != want {
			return false
		}
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	// The terms are ORed. An empty list matches no node.
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms,
		func(t corev1.NodeSelectorTerm) bool { return MatchesTerm(node, t) })
}

// MatchesTerm reports whether the node matches every expression of a term. An empty term matches no
// node.
func MatchesTerm(node Node, term corev1.NodeSelectorTerm) bool {
	if len(term.MatchExpressions) == 0 && len(term.MatchFields) == 0 {
		return false
	}
	for _, e := range term.MatchExpressions {
		value, ok := node.Labels[e.Key]
		if !matchesRequirement(value, ok, e) {
			return false
		}
	}
	for _, e := range term.MatchFields {
		byName := e.Operator == corev1.NodeSelectorOpIn || e.Operator == corev1.NodeSelectorOpNotIn
		if e.Key != "metadata.name" || !byName || !matchesRequirement(node.Name, true, e) {
			return false
		}
	}
	return true
}

// matchesRequirement reports whether a label matches the expression. An invalid expression never
// matches.
func matchesRequirement(value string, present bool, e corev1.NodeSelectorRequirement) bool {
	switch e.Operator {
	case corev1.NodeSelectorOpIn:
		return present && slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return len(e.Values) > 0 && !(present && slices.Contains(e.Values, value))
	case corev1.NodeSelectorOpExists:
		return present && len(e.Values) == 0
	case corev1.NodeSelectorOpDoesNotExist:
		return !present && len(e.Values) == 0
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if !present || len(e.Values) != 1 {
			return false
		}
		have, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return false
		}
		bound, err := strconv.ParseInt(e.Values[0], 10, 64)
		if err != nil {
			return false
		}
		if e.Operator == corev1.NodeSelectorOpGt {
			return have > bound
		}
		return have < bound
	}
	return false
}
