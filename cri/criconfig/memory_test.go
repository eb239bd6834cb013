package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestMemoryHigh is the formula of the field, on pages of 4 KiB.
func TestMemoryHigh(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	for _, row := range []struct {
		sentence       string
		request, limit int64
		factor         float64
		want           int64
	}{
		{"nine tenths of the way from the request to the limit", 50 * mi, 100 * mi, 0.9, 95 * mi},
		{"in whole pages, rounded down", 32 * mi, 64 * mi, 0.9, 63750144},
		{"from nothing", 0, 100 * mi, 0.5, 50 * mi},
		{"a factor of 1 is the limit", 50 * mi, 100 * mi, 1, 100 * mi},
		{"without a factor nowhere", 50 * mi, 100 * mi, 0, 0},
		{"nor where there is no way to go", 100 * mi, 100 * mi, 0.9, 0},
		{"nor where more is asked for than there is", 200 * mi, 100 * mi, 0.9, 0},
	} {
		if got := MemoryHigh(row.request, row.limit, row.factor, 4096); got != row.want {
			t.Errorf("%s: %d, want %d", row.sentence, got, row.want)
		}
	}
}

// TestContainerMemory is one rule a row, on a node of 8 GiB, 7 of them allocatable,
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
		sentence             string
		requests, limits     corev1.ResourceList
		node                 func(*Node)
		pod                  func(*corev1.Pod)
		min, low, high, swap string
	}{
		{"nothing is written unasked", half, whole, func(*Node) {}, nil, "", "", "", "0"},
		{"a Burstable one is left its request if it can be", half, whole, tiered, nil, "", "1073741824", "", "0"},
		{"a Guaranteed one always", guaranteed, guaranteed, both, nil, "1073741824", "", "", "0"},
		{"a BestEffort one nothing, and it is slowed down before it has all", nil, nil, both, nil, "", "", "6764572672", "0"},
		{"between request and limit", half, whole, slow, nil, "", "", "2040107008", "0"},
		{"without a limit between request and what is allocatable", half, nil, both, nil, "", "1073741824", "6871945216",
			"0"},
		{"one whose request is its limit is not slowed down", half, half, both, nil, "", "1073741824", "", "0"},
		{"nor one that names the limit only", nil, half, both, nil, "", "1073741824", "", "0"},
		{"the pod's own limit counts where the container has none", half, nil, slow, func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: half, Limits: whole}
		}, "", "", "2040107008", "0"},
		{"on v1 there is none of that, and no swap", half, whole, func(n *Node) { both(n); swap(n); n.CgroupV2 = false },
			nil, "", "", "", ""},
		{"its part of the node's memory is its part of the swap", half, whole, swap, nil, "", "", "", "536870912"},
		{"also without a limit", half, nil, swap, nil, "", "", "", "536870912"},
		{"no request, no swap", resources("cpu", "1"), whole, swap, nil, "", "", "", "0"},
		{"none for a request that is the limit", half, half, swap, nil, "", "", "", "0"},
		{"none for a Guaranteed one", guaranteed, guaranteed, swap, nil, "", "", "", "0"},
		{"none for a BestEffort one", nil, nil, swap, nil, "", "", "", "0"},
		{"none for a critical one", half, whole, swap, critical, "", "", "", "0"},
		{"none for a static one, which is critical with a server", half, whole, swap, static, "", "", "", "0"},
		{"which it is not on a node alone", half, whole, func(n *Node) { swap(n); n.Standalone = true }, static, "", "", "",
			"536870912"},
		{"nothing is said of it where the kernel cannot limit it", half, whole,
			func(n *Node) { swap(n); n.CanLimitSwap = false }, nil, "", "", "", ""},
	} {
		t.Run(row.sentence, func(t *testing.T) {
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
			for file, want := range map[string]string{"memory.min": row.min, "memory.low": row.low, "memory.high": row.high,
				"memory.swap.max": row.swap} {
				if got := out.Unified[file]; got != want {
					t.Errorf("%s is %q, want %q", file, got, want)
				}
			}
			if !node.CgroupV2 && out.MemorySwapLimitInBytes != out.MemoryLimitInBytes {
				t.Errorf("on v1 it may swap: %v", out)
			}
		})
	}
}
