package admission

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// taints rejects a pod that does not tolerate one of the NoExecute taints of the node. Static pods
// tolerate all.
func taints(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if podspec.IsStatic(pod) {
		return nil
	}
	for _, t := range node.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && !Tolerated(t, pod.Spec.Tolerations) {
			return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate", false)
		}
	}
	return nil
}

// Tolerated reports whether one of the tolerations matches the taint. TolerationSeconds is ignored.
func Tolerated(taint corev1.Taint, tolerations []corev1.Toleration) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			return false
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			return true
		case corev1.TolerationOpEqual, "":
			return t.Value == taint.Value
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			return compares(taint.Value, t)
		}
		return false
	})
}

// compares compares both values as integers. A value that is not an integer never matches.
func compares(value string, t corev1.Toleration) bool {
	have, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return false
	}
	bound, err := strconv.ParseInt(t.Value, 10, 64)
	if err != nil {
		return false
	}
	if t.Operator == corev1.TolerationOpLt {
		return have < bound
	}
	return have > bound
}
