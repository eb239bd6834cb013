package admission

import corev1 "k8s.io/api/core/v1"

// NodeName rejects a pod that is bound to another node.
func NodeName(node Node, pod *corev1.Pod) []Rejection { return nodeName(node, Used{}, pod) }

// nodeName rejects a pod that is bound to another node.
func nodeName(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if pod.Spec.NodeName == "" || pod.Spec.NodeName == node.Name {
		return nil
	}
	return predicate("NodeName", "node(s) didn't match the requested node name", false)
}
