package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestMemoryHigh checks the formula with pages of 4 KiB.
func TestMemoryHigh(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	for _, row := range []struct {
		name           string
		request, limit int64
		factor         float64
		want           int64
	}{
		{"nine tenths between the request and the limit", 50 * mi, 100 * mi, 0.9, 95 * mi},
		{"in whole pages, rounded down", 32 * mi, 64 * mi, 0.9, 63750144},
		{"without a request", 0, 100 * mi, 0.5, 50 * mi},
		{"a factor of 1 is the limit", 50 * mi, 100 * mi, 1, 100 * mi},
		{"no throttling without a factor", 50 * mi, 100 * mi, 0, 0},
		{"no throttling if the request is the limit", 100 * mi, 100 * mi, 0.9, 0},
		{"no throttling if the request exceeds the limit", 200 * mi, 100 * mi, 0.9, 0},
	} {
		if got := MemoryHigh(row.request, row.limit, row.factor, 4096); got != row.want {
			t.Errorf("%s: %d, want %d", row.name, got, row.want)
		}
	}
}

// TestContainerMemory has one rule per row, on a node with 8 GiB, 7 of them allocatable,
// and 4 GiB of swap.
func TestContainerMemory(t *testing.T) {
	t.Parallel()
	tiered := func(n *Node) { n.MemoryReservation = true }
	slow := func(n *Node) { n.MemoryThrottlingFactor, n.PageSize = 0.9, 4096 }
	both := func(n *Node) { tiered(n); slow(n) }
	swap := func(n *Node) { n.SwapCapacity = 4 << 30 }
	critical := func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-cluster-critical" }
	static := func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }
	half := resources("memory", "1Gi")
	whole := resources("memory", "2Gi")
	guaranteed := resources("cpu", "1", "memory", "1Gi")
	for _, row := range []struct {
		name                 string
		requests, limits     corev1.ResourceList
		node                 func(*Node)
		pod                  func(*corev1.Pod)
		min, low, high, swap string
	}{
		{"nothing is set by default", half, whole, func(*Node) {}, nil, "", "", "", "0"},
		{"the request of a Burstable container is memory.low", half, whole, tiered, nil, "", "1073741824", "", "0"},
		{"the request of a Guaranteed container is memory.min", guaranteed, guaranteed, both, nil, "1073741824", "", "",
			"0"},
		{"a BestEffort container is throttled below the allocatable memory", nil, nil, both, nil, "", "", "6764572672",
			"0"},
		{"memory.high is between request and limit", half, whole, slow, nil, "", "", "2040107008", "0"},
		{"without a limit, memory.high is between request and allocatable", half, nil, both, nil, "", "1073741824",
			"6871945216",
			"0"},
		{"a container whose request is its limit is not throttled", half, half, both, nil, "", "1073741824", "", "0"},
		{"a container with only a limit is not throttled", nil, half, both, nil, "", "1073741824", "", "0"},
		{"the pod's limit is the default of the container's", half, nil, slow, func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: half, Limits: whole}
		}, "", "", "2040107008", "0"},
		{"cgroup v1 has no memory QoS and no swap", half, whole, func(n *Node) { both(n); swap(n); n.CgroupV2 = false },
			nil, "", "", "", ""},
		{"swap is proportional to the memory request", half, whole, swap, nil, "", "", "", "536870912"},
		{"swap without a memory limit", half, nil, swap, nil, "", "", "", "536870912"},
		{"no swap without a memory request", resources("cpu", "1"), whole, swap, nil, "", "", "", "0"},
		{"no swap if the request is the limit", half, half, swap, nil, "", "", "", "0"},
		{"no swap for a Guaranteed container", guaranteed, guaranteed, swap, nil, "", "", "", "0"},
		{"no swap for a BestEffort container", nil, nil, swap, nil, "", "", "", "0"},
		{"no swap for a critical pod", half, whole, swap, critical, "", "", "", "0"},
		{"no swap for a static pod, which is critical with an API server", half, whole, swap, static, "", "", "", "0"},
		{"swap for a static pod on a standalone node", half, whole, func(n *Node) {
			swap(n)
			n.Standalone = true
		}, static,
			"", "", "",
			"536870912"},
		{"no setting if the kernel cannot limit swap", half, whole,
			func(n *Node) { swap(n); n.CanLimitSwap = false }, nil, "", "", "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			node := testNode()
			row.node(&node)
			pod := makePod(func(p *corev1.Pod, c *corev1.Container) {
				c.Resources = corev1.ResourceRequirements{Requests: row.requests, Limits: row.limits}
				if row.pod != nil {
					row.pod(p)
				}
			})
			out, err := Resources(node, pod, &pod.Spec.Containers[0])
			if err != nil {
				t.Fatal(err)
			}
			for file, want := range map[string]string{"memory.min": row.min, "memory.low": row.low,
				"memory.high":     row.high,
				"memory.swap.max": row.swap} {
				if got := out.Unified[file]; got != want {
					t.Errorf("%s: got %q, want %q", file, got, want)
				}
			}
			if !node.CgroupV2 && out.MemorySwapLimitInBytes != out.MemoryLimitInBytes {
				t.Errorf("swap on v1: %v", out)
			}
		})
	}
}
