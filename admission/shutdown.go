package admission

import corev1 "k8s.io/api/core/v1"

// shutdown rejects every new pod during a graceful node shutdown. Pods that are not recreated
// elsewhere are admitted after the boot.
func shutdown(node Node, _ Used, _ *corev1.Pod) []Rejection {
	if !node.ShuttingDown {
		return nil
	}
	return []Rejection{
		{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down.", Recoverable: true},
	}
}
