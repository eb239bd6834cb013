package admission

import "testing"

func TestSupplementalGroupsPolicy(t *testing.T) {
	without := func(n *Node) { n.NoSupplementalGroupsPolicy = true }
	pod := func(policy string) string { return "{securityContext: {supplementalGroupsPolicy: " + policy + "}}" }
	check(t, []row{
		{sentence: "a pod without a policy", pod: podOf(t, "{}"), node: without},
		{sentence: "policy Merge", pod: podOf(t, pod("Merge")), node: without},
		{sentence: "policy Strict on a runtime that supports it", pod: podOf(t, pod("Strict"))},
		{
			sentence: "policy Strict on a runtime that does not support it",
			pod:      podOf(t, pod("Strict")),
			node:     without,
			want: []Rejection{{
				Reason:  "SupplementalGroupsPolicyNotSupported",
				Message: "SupplementalGroupsPolicy=Strict is not supported in this node",
			}},
		},
	})
}
