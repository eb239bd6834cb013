package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// pressure rejects new pods while the node is under pressure. Under memory pressure alone it
// rejects only BestEffort pods that do not tolerate the taint, because they would be evicted first.
// Critical pods are admitted.
func pressure(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if len(node.PressureConditions) == 0 || podspec.IsCritical(pod, node.Standalone) {
		return nil
	}
	if len(node.PressureConditions) == 1 && node.PressureConditions[0] == corev1.NodeMemoryPressure {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if podspec.QOSClass(pod) != corev1.PodQOSBestEffort || Tolerated(taint, pod.Spec.Tolerations) {
			return nil
		}
	}
	return []Rejection{
		{
			Reason:      "Evicted",
			Message:     fmt.Sprintf("The node had condition: %v. ", node.PressureConditions),
			Recoverable: true,
		},
	}
}
