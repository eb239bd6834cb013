package pair

import (
	"strings"
	"testing"

	"berth/control"
)

// TestANodeThatIsCutOff: its agent lives and nobody hears it. The server gives it
// up and evicts; its pods go on until the way is back, those that were evicted end
// then, and the others are as they were. Another node stays: where all are lost, it
// is the server's own fault, and nobody is evicted.
func TestANodeThatIsCutOff(t *testing.T) {
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
		p.is("pod", name, ready, "True")
	}
	tolerating("going", "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}")
	tolerating("staying", "{operator: Exists, effect: NoExecute}")
	id := p.field("pod", "staying", idOf)

	p.wire.cut()
	p.nodeIs("Ready", "Unknown")
	p.until("the eviction", func() string {
		if p.field("pod", "going", ending) == "" {
			return "it is not told to end"
		}
		return ""
	})
	p.is("pod", "staying", ready, "False")
	if at := p.field("pod", "staying", ending); at != "" {
		t.Errorf("the pod that tolerates it is to end at %s", at)
	}
	if n := running(p); n != 2 {
		t.Errorf("%d containers run where nobody knows of an eviction", n)
	}

	p.wire.join()
	p.nodeIs("Ready", "True")
	p.until("the taints to go", func() string {
		return strings.TrimSpace(p.field("node", p.Node, "range .spec.taints[*]}{.key}:{.effect} {end"))
	})
	p.until("the evicted pod to end", func() string { return p.field("pod", "going", ".metadata.name") })
	p.is("pod", "staying", ready, "True")
	if now, n := p.field("pod", "staying", idOf), p.field("pod", "staying", restarts); now != id || n != "0" {
		t.Errorf("container %s is %s after %s restarts", id, now, n)
	}
	if n := running(p); n != 1 {
		t.Errorf("%d containers run", n)
	}
}
