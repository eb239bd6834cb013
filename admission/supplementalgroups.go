package admission

import corev1 "k8s.io/api/core/v1"

// groupsPolicy rejects a pod with supplementalGroupsPolicy Strict if the runtime does not support
// the policy and would add the groups of the image.
func groupsPolicy(node Node, _ Used, pod *corev1.Pod) []Rejection {
	sc := pod.Spec.SecurityContext
	if !node.NoSupplementalGroupsPolicy || sc == nil || sc.SupplementalGroupsPolicy == nil ||
		*sc.SupplementalGroupsPolicy != corev1.SupplementalGroupsPolicyStrict {
		return nil
	}
	return []Rejection{
		{
			Reason:  "SupplementalGroupsPolicyNotSupported",
			Message: "SupplementalGroupsPolicy=Strict is not supported in this node",
		},
	}
}
