package criconfig

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Warning is a problem of a pod that runs nevertheless.
type Warning struct {
	Reason  string // of an event, as upstream names it
	Message string
}

func (w Warning) String() string { return w.Reason + ": " + w.Message }

func warn(reason, format string, args ...any) Warning {
	return Warning{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ContainerWarnings returns the warnings for a container that Container has translated.
func ContainerWarnings(node Node, pod *corev1.Pod, c *corev1.Container, setup plan.ContainerConfig) []Warning {
	if len(c.EnvFrom) == 0 { // no other field causes warnings
		return nil
	}
	_, warnings, _ := Env(node, pod, c, setup) // Container has returned the error
	return warnings
}

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
