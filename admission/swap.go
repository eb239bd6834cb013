package admission

import (
	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// SwapPreventsResize returns why a running pod cannot be resized in place because of swap, or an
// empty string. The swap limit of a container follows from its memory request and is set when it is
// created. Only a restart changes it.
func SwapPreventsResize(node Node, was, is *corev1.Pod) string {
	if !node.LimitedSwap {
		return ""
	}
	for _, lists := range [][2][]corev1.Container{
		{was.Spec.Containers, is.Spec.Containers}, {was.Spec.InitContainers, is.Spec.InitContainers},
	} {
		for i := range lists[0] {
			if i >= len(lists[1]) {
				break
			}
			before, now := &lists[0][i], &lists[1][i]
			had, has := before.Resources.Requests[corev1.ResourceMemory], now.Resources.Requests[corev1.ResourceMemory]
			if had.Cmp(has) != 0 && !restartsForMemory(before) &&
				(podspec.SwapAllowed(was, before, node.Standalone) || podspec.SwapAllowed(is, now, node.Standalone)) {
				return "In-place resize of containers with swap is not supported"
			}
		}
	}
	return ""
}

func restartsForMemory(c *corev1.Container) bool {
	for _, p := range c.ResizePolicy {
		if p.ResourceName == corev1.ResourceMemory {
			return p.RestartPolicy == corev1.RestartContainer
		}
	}
	return false
}
