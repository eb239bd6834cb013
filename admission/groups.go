package admission

import corev1 "k8s.io/api/core/v1"

// groupsPolicy refuses a pod whose groups have to be as its spec says and no
// others, on a runtime that would add those of the image.
func groupsPolicy(node Node, _ Used, pod *corev1.Pod) []Rejection {
	sc := pod.Spec.SecurityContext
	if !node.NoSupplementalGroupsPolicy || sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return nil
	}
	return []Rejection{{Reason: "SupplementalGroupsPolicyNotSupported", Message: "SupplementalGroupsPolicy=Strict is not supported in this node"}}
}
