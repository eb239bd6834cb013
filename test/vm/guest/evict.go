package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"berth/node"
)

// takes has so many MiB of memory, in a volume, and requests so many.
func takes(request, mib int) string {
	return fmt.Sprintf("  hostNetwork: true\n  volumes: [{name: v, emptyDir: {medium: Memory}}]\n  containers:\n  - name: c\n    image: busybox:1.36\n"+
		"    command: [sh, -c, 'dd if=/dev/zero of=/v/x bs=1M count=%d 2>/dev/null; sleep 1000000']\n"+
		"    volumeMounts: [{name: v, mountPath: /v}]\n    resources: {requests: {memory: %dMi}}\n", mib, request)
}

// evict makes the machine itself short of memory: by both sources the pod goes that
// has most beyond its request, and the pressure ends when the transition period is
// over.
func evict(t *testing.T) {
	put(t, map[string]string{"modest": takes(64, 32)})
	modest := running(t, "modest")
	memory, err := node.ReadMemory()
	if err != nil {
		t.Fatal(err)
	}
	const config = "/etc/berth/config.yaml"
	least := (memory.Available>>20 - 250) | 1 // odd: it is written in Mi
	text := readFile(t, config) + fmt.Sprintf("evictionHard: {memory.available: %dMi}\nevictionPressureTransitionPeriod: 5s\n", least)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	output(t, "systemctl", "restart", "berth")
	active(t)
	put(t, map[string]string{"hog": takes(16, 400)})
	hog := pod(t, "hog", "evicted", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if hog.Status.Reason != "Evicted" || !strings.HasPrefix(hog.Status.Message, fmt.Sprintf("The node was low on resource: memory. Threshold quantity: %dMi, available: ", least)) {
		t.Errorf("%s", brief(hog))
	}
	contains(t, "its events", output(t, "berth", "describe", "hog"), "emory.available is ", "by the working set and by ", "Eviction ranking: 1. default/hog")
	wait(t, "the pressure to end", func() (bool, string) {
		out := output(t, "berth", "ps")
		return !strings.Contains(out, "MemoryPressure"), out
	})
	if p := running(t, "modest"); id(p) != id(modest) || container(p, "c").RestartCount != 0 {
		t.Errorf("it was %s: %s", brief(modest), brief(p))
	}
	drop(t, "modest", "hog")
}
