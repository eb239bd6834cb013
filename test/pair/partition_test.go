package pair

import (
	"strings"
	"testing"

	"berth/control"
)

// TestNetworkPartition: the agent runs but cannot reach the server. The server marks the node as
// unreachable and evicts its pods. The pods keep running until the connection is back. Then evicted
// pods are stopped, and the others are unchanged. A second node stays connected, because the server
// evicts nothing if all nodes are unreachable.
func TestNetworkPartition(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{
		Cut: true, Server: []func(*control.Config){func(c *control.Config) { c.NodeMonitorGracePeriod = lostAfter }},
		Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds},
	})
	p.issueToken()
	other := &Pair{t: t, Server: p.Server}
	other.joinHost(t.TempDir(), pairOptions{Config: map[string]any{"nodeLeaseDurationSeconds": leaseSeconds}})
	other.nodeIs("Ready", "True")
	tolerating := func(name, tolerations string) {
		t.Helper()
		p.Apply(t, p.pod(name, "", "sleep")+"  tolerations: ["+tolerations+"]\n")
		p.waitForField("pod", name, ready, "True")
	}
	tolerating("going", "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}")
	tolerating("staying", "{operator: Exists, effect: NoExecute}")
	id := p.field("pod", "staying", idOf)

	p.wire.cut()
	p.nodeIs("Ready", "Unknown")
	p.until("the eviction", func() string {
		if p.field("pod", "going", ending) == "" {
			return "not being deleted"
		}
		return ""
	})
	p.waitForField("pod", "staying", ready, "False")
	if at := p.field("pod", "staying", ending); at != "" {
		t.Errorf("the tolerating pod has deletionTimestamp %s", at)
	}
	if n := running(p); n != 2 {
		t.Errorf("%d containers run on the disconnected node", n)
	}

	p.wire.join()
	p.nodeIs("Ready", "True")
	p.until("the taints to go", func() string {
		return strings.TrimSpace(p.field("node", p.Node, "range .spec.taints[*]}{.key}:{.effect} {end"))
	})
	p.until("the evicted pod to end", func() string { return p.field("pod", "going", ".metadata.name") })
	p.waitForField("pod", "staying", ready, "True")
	if now, n := p.field("pod", "staying", idOf), p.field("pod", "staying", restarts); now != id || n != "0" {
		t.Errorf("container %s: got %s after %s restarts", id, now, n)
	}
	if n := running(p); n != 1 {
		t.Errorf("%d containers run", n)
	}
}
