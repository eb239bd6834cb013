package admission

import corev1 "k8s.io/api/core/v1"

// appArmor rejects a pod with an AppArmor profile if the host does not enforce profiles, because it
// would run unconfined. Whether a profile is loaded is checked by the runtime when it creates the
// container.
func appArmor(node Node, _ Used, pod *corev1.Pod) []Rejection {
	if !node.NoAppArmor || !wantsAppArmor(pod) {
		return nil
	}
	return []Rejection{{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}}
}

func wantsAppArmor(pod *corev1.Pod) bool {
	confines := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := pod.Spec.SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
		return true
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
				return true
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if sc := pod.Spec.EphemeralContainers[i].SecurityContext; sc != nil && confines(sc.AppArmorProfile) {
			return true
		}
	}
	return false
}
