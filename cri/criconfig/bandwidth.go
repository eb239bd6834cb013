package criconfig

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// BandwidthWarnings reports that the bandwidth annotations of the pod have no effect. containerd
// itself reads them and passes them to the CNI plugins that support them.
func BandwidthWarnings(node Node, pod *corev1.Pod) []Warning {
	if len(podspec.BandwidthLimits(pod)) == 0 {
		return nil
	}
	switch {
	case pod.Spec.HostNetwork:
		return []Warning{warn(reasonBandwidth, "the pod's bandwidth is not limited: it is on the host's network")}
	case node.NoBandwidthReason != "":
		return []Warning{warn(reasonBandwidth, "the pod's bandwidth is not limited: %s", node.NoBandwidthReason)}
	}
	return nil
}

const reasonBandwidth = "BandwidthNotLimited"
