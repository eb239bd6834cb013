package admission

import "testing"

// Containers with swap keep their memory request until they restart.
func TestSwapPreventsResize(t *testing.T) {
	const restart = ", resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]"
	pod := func(resources, more string) string {
		return "{containers: [{name: a, image: x, resources: {" + resources + "}" + more + "}]}"
	}
	for _, row := range []struct {
		sentence, was, is string
		noSwap, forbidden bool
	}{
		{"another request of memory", pod("requests: {memory: 1Gi}", ""), pod("requests: {memory: 2Gi}", ""), false,
			true},
		{"the same written otherwise", pod("requests: {memory: 1Gi}", ""), pod("requests: {memory: 1024Mi}", ""), false,
			false},
		{"on a node where no pod has swap", pod("requests: {memory: 1Gi}", ""), pod("requests: {memory: 2Gi}", ""),
			true, false},
		{"with a restart", pod("requests: {memory: 1Gi}", restart), pod("requests: {memory: 2Gi}", restart), false,
			false},
		{"another limit", pod("requests: {memory: 1Gi}, limits: {memory: 2Gi}", ""),
			pod("requests: {memory: 1Gi}, limits: {memory: 3Gi}", ""), false, false},
		{"another request of CPU", pod("requests: {memory: 1Gi, cpu: 1}", ""),
			pod("requests: {memory: 1Gi, cpu: 2}", ""), false, false},
		{"one whose request is its limit has no swap", pod("requests: {memory: 1Gi}, limits: {memory: 1Gi}", ""),
			pod("requests: {memory: 2Gi}, limits: {memory: 2Gi}", ""), false, false},
		{"… but not a container that gets swap", pod("requests: {memory: 1Gi}, limits: {memory: 1Gi}", ""),
			pod("requests: {memory: 512Mi}, limits: {memory: 1Gi}", ""), false, true},
		{"a Guaranteed one has none", pod("requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1Gi, cpu: 1}", ""),
			pod("requests: {memory: 2Gi, cpu: 1}, limits: {memory: 2Gi, cpu: 1}", ""), false, false},
	} {
		node := testNode()
		node.LimitedSwap = !row.noSwap
		if why := SwapPreventsResize(node, podOf(t, row.was), podOf(t, row.is)); (why != "") != row.forbidden {
			t.Errorf("%s: %q", row.sentence, why)
		}
	}
}
