package criconfig

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Bandwidth tells when what the pod's annotations ask of its network is not to be
// had. containerd reads them itself and hands them to the plugins that take them.
func Bandwidth(node Node, pod *corev1.Pod) []Warning {
	if len(podspec.BandwidthLimits(pod)) == 0 {
		return nil
	}
	switch {
	case pod.Spec.HostNetwork:
		return []Warning{warn(reasonBandwidth, "the pod's bandwidth is not limited: it is on the host's network")}
	case node.NoBandwidth != "":
		return []Warning{warn(reasonBandwidth, "the pod's bandwidth is not limited: %s", node.NoBandwidth)}
	}
	return nil
}

const reasonBandwidth = "BandwidthNotLimited"
