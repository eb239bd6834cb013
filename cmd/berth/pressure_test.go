package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/board"
	"berth/agent/plan"
	"berth/nodeconfig"
)

func TestThePressuresOfAConfiguration(t *testing.T) {
	t.Parallel()
	const kubelet, own = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n", "---\napiVersion: berth.dev/v1alpha1\nkind: BerthConfiguration\n"
	for _, row := range []struct{ config, want string }{
		{kubelet + "evictionHard: {memory.available: 100Mi, nodefs.available: 10%}",
			"[{memory.available true 104857600 0 0s 0 0} {nodefs.available true 0 10 0s 0 0} {allocatableMemory.available true 104857600 0 0s 0 0}] 5m0s false"},
		{kubelet + "evictionHard: {memory.available: 100Mi}\nenforceNodeAllocatable: [none]", "[{memory.available true 104857600 0 0s 0 0}] 5m0s false"},
		{kubelet + "evictionHard: {memory.available: 1Gi, allocatableMemory.available: 1Mi}\nevictionPressureTransitionPeriod: 30s\n" + own + "memoryPressureSources: workingSet",
			"[{allocatableMemory.available true 1048576 0 0s 0 0} {memory.available true 1073741824 0 0s 0 0}] 30s true"},
		{kubelet + "evictionHard: {}\nevictionSoft: {pid.available: 5%}\nevictionSoftGracePeriod: {pid.available: 90s}\nevictionMinimumReclaim: {pid.available: \"10\"}",
			"[{pid.available false 0 5 1m30s 10 0}] 5m0s false"},
	} {
		file := filepath.Join(t.TempDir(), "node.yaml")
		if err := os.WriteFile(file, []byte(row.config), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _, err := nodeconfig.Load(&nodeconfig.Flags{Config: file, HostnameOverride: "n"})
		if err != nil {
			t.Fatal(err)
		}
		p := pressureConfig(c)
		if got := fmt.Sprint(p.Thresholds, p.Transition, p.WorkingSetAlone); got != row.want {
			t.Errorf("%s\ngot  %s\nwant %s", row.config, got, row.want)
		}
	}
}

func TestWhatIsLeftOfTheDead(t *testing.T) {
	t.Parallel()
	running, dead := plan.Container{Name: "a", State: plan.Running}, plan.Container{Name: "a", State: plan.Exited}
	for _, row := range []struct {
		phase corev1.PodPhase
		seen  []plan.Container
		want  bool
	}{
		{corev1.PodRunning, []plan.Container{running}, false}, {corev1.PodRunning, []plan.Container{running, dead}, true},
		{corev1.PodRunning, []plan.Container{dead}, false}, {corev1.PodRunning, []plan.Container{dead, dead}, true},
		{corev1.PodFailed, []plan.Container{dead}, true}, {corev1.PodSucceeded, nil, false},
	} {
		s := &board.Snapshot{Pod: &corev1.Pod{}}
		s.Status.Phase, s.Seen.Containers = row.phase, row.seen
		if got := deadLeft([]*board.Snapshot{s}); got != row.want {
			t.Errorf("%s, %d containers: %t", row.phase, len(row.seen), got)
		}
	}
}
