package node

import (
	"fmt"
	"runtime"
	"testing"

	"berth/internal/nodeconfig/nodeconfigtest"
)

func TestPodsPerCoreLimitsNodePods(t *testing.T) {
	t.Parallel()
	cpus := runtime.NumCPU()
	for _, row := range []struct{ maxPods, perCore, want int }{
		{110, 0, 110}, {100_000, 3, 3 * cpus}, {1, 3, 1}, {1<<31 - 1, 1<<31 - 1, 1<<31 - 1},
	} {
		c := nodeconfigtest.Load(t, fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\n"+
			"kind: KubeletConfiguration\nmaxPods: %d\npodsPerCore: %d\n"+
			"---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"+
			"rootDir: %s\n", row.maxPods, row.perCore, t.TempDir()))
		r, err := ConfiguredResources(c)
		if err != nil {
			t.Fatal(err)
		}
		if got, capacity := r.Allocatable.Pods().Value(), r.Capacity.Pods().Value(); got != int64(row.want) ||
			capacity != got {
			t.Errorf("maxPods %d, podsPerCore %d: %d pods of %d, want %d", row.maxPods, row.perCore, got, capacity,
				row.want)
		}
	}
}

func TestEvictionThresholdsFromConfiguration(t *testing.T) {
	t.Parallel()
	const kubelet, own = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: " +
		"KubeletConfiguration\n", "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"
	for _, row := range []struct{ config, want string }{
		{kubelet + "evictionHard: {memory.available: 100Mi, nodefs.available: 10%}",
			"[{memory.available true 104857600 0 0s 0 0} {nodefs.available true 0 10 0s 0 0} " +
				"{allocatableMemory.available true 104857600 0 0s 0 0}] 5m0s false"},
		{
			kubelet + "evictionHard: {memory.available: 100Mi}\nenforceNodeAllocatable: [none]",
			"[{memory.available true 104857600 0 0s 0 0}] 5m0s false",
		},
		{kubelet + "evictionHard: {memory.available: 1Gi, allocatableMemory.available: " +
			"1Mi}\nevictionPressureTransitionPeriod: 30s\n" + own + "memoryPressureSources: workingSet",
			"[{allocatableMemory.available true 1048576 0 0s 0 0} {memory.available true 1073741824 0 0s 0 " +
				"0}] 30s true"},
		{kubelet + "evictionHard: {}\nevictionSoft: {pid.available: 5%}\nevictionSoftGracePeriod: {pid.available: " +
			"90s}\nevictionMinimumReclaim: {pid.available: \"10\"}",
			"[{pid.available false 0 5 1m30s 10 0}] 5m0s false"},
	} {
		p := PressureConfig(nodeconfigtest.Load(t, row.config))
		if got := fmt.Sprint(p.Thresholds, p.TransitionPeriod, p.WorkingSetOnly); got != row.want {
			t.Errorf("%s\ngot  %s\nwant %s", row.config, got, row.want)
		}
	}
}
