package admission

import corev1 "k8s.io/api/core/v1"

// operatingSystem rejects a pod whose OS field or label names another operating system.
func operatingSystem(node Node, _ Used, pod *corev1.Pod) []Rejection {
	system := node.OS
	if system == "" {
		system = string(corev1.Linux)
	}
	if label, ok := pod.Labels[corev1.LabelOSStable]; ok && label != system {
		return []Rejection{{
			Reason:  "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `" + corev1.LabelOSStable + "` label doesn't match node label",
		}}
	}
	if pod.Spec.OS != nil && string(pod.Spec.OS.Name) != system {
		return []Rejection{{
			Reason:  "PodOSNotSupported",
			Message: "Failed to admit pod as the OS field doesn't match node OS",
		}}
	}
	return nil
}
