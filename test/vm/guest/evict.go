package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/node"
)

// memoryPod returns the spec of a pod that writes mib MiB to a memory volume and requests request MiB.
func memoryPod(request, mib int) string {
	return fmt.Sprintf("  hostNetwork: true\n  volumes: [{name: v, emptyDir: {medium: Memory}}]\n  containers:\n  - "+
		"name: c\n    image: busybox:1.36\n"+
		"    command: [sh, -c, 'dd if=/dev/zero of=/v/x bs=1M count=%d 2>/dev/null; sleep 1000000']\n"+
		"    volumeMounts: [{name: v, mountPath: /v}]\n    resources: {requests: {memory: %dMi}}\n", mib, request)
}

// evict creates memory pressure on the machine. Both memory sources report it, the pod that exceeds its
// request most is evicted, and the pressure ends after the transition period.
func evict(t *testing.T) {
	createPods(t, map[string]string{"modest": memoryPod(64, 32)})
	modest := waitRunning(t, "modest")
	memory, err := node.ReadMemory()
	if err != nil {
		t.Fatal(err)
	}
	const config = "/etc/berth/config.yaml"
	threshold := (memory.Available>>20 - 250) | 1 // an odd number stays in Mi when it is formatted
	text := readFile(t, config) +
		fmt.Sprintf("evictionHard: {memory.available: %dMi}\nevictionPressureTransitionPeriod: 5s\n", threshold)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	output(t, "systemctl", "restart", "berth")
	waitActive(t)
	createPods(t, map[string]string{"hog": memoryPod(16, 400)})
	hog := waitPod(t, "hog", "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if hog.Status.Reason != "Evicted" || !strings.HasPrefix(hog.Status.Message,
		fmt.Sprintf("The node was low on resource: memory. Threshold quantity: %dMi, available: ", threshold)) {
		t.Errorf("got %s, want reason Evicted with the threshold", summary(hog))
	}
	checkContains(t, "berth describe", output(t, "berth", "describe", "hog"), "emory.available is ",
		"by the working set and by ", "Eviction ranking: 1. default/hog")
	waitFor(t, "the pressure to end", func() (bool, string) {
		out := output(t, "berth", "ps")
		return !strings.Contains(out, "MemoryPressure"), out
	})
	if p := waitRunning(t, "modest"); containerID(p) != containerID(modest) || container(p, "c").RestartCount != 0 {
		t.Errorf("pod modest was restarted: got %s, before %s", summary(p), summary(modest))
	}
	removePods(t, "modest", "hog")
}
