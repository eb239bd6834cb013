package admission

import corev1 "k8s.io/api/core/v1"

// shutdown refuses every new pod while the node goes down. After the boot the node
// takes pods again: those that nobody makes anew elsewhere wait for that.
func shutdown(node Node, _ Used, _ *corev1.Pod) []Rejection {
	if !node.ShuttingDown {
		return nil
	}
	return []Rejection{{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down.", Recoverable: true}}
}
