package criconfig

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// BandwidthWarnings tells when what the pod's annotations ask of its network is not to be
// had. containerd reads them itself and hands them to the plugins that take them.
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
