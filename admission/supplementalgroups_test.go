package admission

import "testing"

func TestSupplementalGroupsPolicy(t *testing.T) {
	without := func(n *Node) { n.NoSupplementalGroupsPolicy = true }
	pod := func(policy string) string { return "{securityContext: {supplementalGroupsPolicy: " + policy + "}}" }
	check(t, []row{
		{sentence: "a pod without a policy asks for nothing", pod: podOf(t, "{}"), node: without},
		{sentence: "nor does one whose image may add groups", pod: podOf(t, pod("Merge")), node: without},
		{sentence: "a runtime that knows the policy may be asked for it", pod: podOf(t, pod("Strict"))},
		{sentence: "one that does not would add the image's groups", pod: podOf(t, pod("Strict")), node: without, want: []Rejection{{
			Reason: "SupplementalGroupsPolicyNotSupported", Message: "SupplementalGroupsPolicy=Strict is not supported in this node",
		}}},
	})
}
