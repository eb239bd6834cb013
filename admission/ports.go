package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// HostPorts rejects a pod with a host port that a pod in used has.
func HostPorts(used Used, pod *corev1.Pod) []Rejection { return hostPorts(Node{}, used, pod) }

// hostPorts rejects a pod with a host port that another pod has.
func hostPorts(_ Node, used Used, pod *corev1.Pod) []Rejection {
	for _, want := range podspec.HostPorts(pod) {
		if _, same := used.Ports[want]; same || taken(used, want) {
			return predicate(
				"NodePorts",
				fmt.Sprintf(
					"node(s) didn't have free ports for the requested pod ports: %d/%s",
					want.Port,
					want.Protocol,
				),
				true,
			)
		}
	}
	return nil
}

func taken(used Used, want podspec.HostPort) bool {
	for have := range used.Ports {
		if have.Conflicts(want) {
			return true
		}
	}
	return false
}
