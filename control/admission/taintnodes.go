package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// taintNodesByCondition taints new nodes as not ready. The node lifecycle controller removes the
// taint when the node is ready.
type taintNodesByCondition struct{ *admission.Handler }

func newTaintNodesByCondition(Config) (admission.Interface, error) {
	return taintNodesByCondition{admission.NewHandler(admission.Create)}, nil
}

// Admit adds the taint if it is missing.
func (taintNodesByCondition) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := a.GetObject().(*corev1.Node)
	if !ok || !isResource(a, "", "nodes") || a.GetSubresource() != "" {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}
