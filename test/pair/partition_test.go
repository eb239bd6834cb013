package pair

import (
	"strings"
	"testing"

	"berth/control"
)

// TestNetworkPartition disconnects a running agent from the server. The server marks the node as
// unreachable and evicts its pods, which keep running. After the agent reconnects, it stops the evicted
// pods and does not change the others. A second node stays connected, because the server evicts no pods
// if all nodes are unreachable.
func TestNetworkPartition(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{
		UseServerProxy: true,
		Server: []func(*control.Config){func(c *control.Config) {
			c.NodeMonitorGracePeriod = monitorGracePeriod
		}},
		Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds},
	})
	p.createBootstrapToken()
	other := &Pair{t: t, Server: p.Server}
	other.joinHost(t.TempDir(), pairOptions{Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds}})
	other.waitForNodeCondition("Ready", "True")
	applyTolerating := func(name, tolerations string) {
		t.Helper()
		p.Apply(t, p.pod(name, "", "sleep")+"  tolerations: ["+tolerations+"]\n")
		p.waitForField("pod", name, readyStatus, "True")
	}
	applyTolerating("evicted",
		"{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}")
	applyTolerating("tolerating", "{operator: Exists, effect: NoExecute}")
	id := p.field("pod", "tolerating", containerID)

	p.serverProxy.disconnect()
	p.waitForNodeCondition("Ready", "Unknown")
	p.waitUntil("the eviction", func() string {
		if p.field("pod", "evicted", deletionTimestamp) == "" {
			return "not being deleted"
		}
		return ""
	})
	p.waitForField("pod", "tolerating", readyStatus, "False")
	if at := p.field("pod", "tolerating", deletionTimestamp); at != "" {
		t.Errorf("tolerating pod: got deletionTimestamp %s, want none", at)
	}
	if n := runningContainers(p); n != 2 {
		t.Errorf("got %d running containers on the disconnected node, want 2", n)
	}

	p.serverProxy.connect()
	p.waitForNodeCondition("Ready", "True")
	p.waitUntil("removal of the taints", func() string {
		return strings.TrimSpace(p.field("node", p.Node, "range .spec.taints[*]}{.key}:{.effect} {end"))
	})
	p.waitUntil("deletion of the evicted pod", func() string { return p.field("pod", "evicted", ".metadata.name") })
	p.waitForField("pod", "tolerating", readyStatus, "True")
	now, n := p.field("pod", "tolerating", containerID), p.field("pod", "tolerating", restartCount)
	if now != id || n != "0" {
		t.Errorf("got container %s with %s restarts, want %s without restarts", now, n, id)
	}
	if n := runningContainers(p); n != 1 {
		t.Errorf("got %d running containers, want 1", n)
	}
}
