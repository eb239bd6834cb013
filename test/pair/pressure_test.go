package pair

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDiskPressure fills the node's file system: the Node reports the condition, the server taints
// it, new pods are rejected, and all of this ends when space is freed.
func TestDiskPressure(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{Nodefs: "size=64m", Config: map[string]any{
		"evictionHard":                     map[string]string{"nodefs.available": "50%", "memory.available": "100Mi"},
		"evictionPressureTransitionPeriod": "15s",
	}})
	p.Apply(t, p.pod("before", "", "sleep"))
	p.waitForField("pod", "before", ".status.phase", "Running")
	p.nodeIs("DiskPressure", "False")
	ballast := filepath.Join(p.Agent.RootDir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 33<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p.nodeIs("DiskPressure", "True")
	taints := func() string { return p.field("node", p.Node, ".spec.taints[*].key") }
	p.until("the taint", func() string {
		if has := taints(); !strings.Contains(has, "node.kubernetes.io/disk-pressure") {
			return "got " + has
		}
		return ""
	})
	p.nodeIs("Ready", "True")
	p.nodeIs("MemoryPressure", "False")

	// A pod for the scheduler stays pending. A bound pod is rejected.
	p.Apply(t, strings.Replace(p.pod("waits", "", "sleep"), "  nodeName: "+p.Node+"\n", "", 1))
	p.until("its refusal by the scheduler", func() string {
		if text := p.field("pod", "waits", `.status.conditions[?(@.type=="PodScheduled")].message`); !strings.Contains(text,
			"disk-pressure") {
			return text
		}
		return ""
	})
	p.Apply(t, p.pod("put", "", "sleep"))
	p.waitForField("pod", "put", ".status.phase", "Failed")
	p.waitForField("pod", "put", ".status.reason", "Evicted")
	p.waitForField("pod", "put", ".status.message", "Pod was rejected: The node had condition: [DiskPressure]. ")
	p.until("the event", func() string {
		out := p.Kubectl(t, "get", "events", "-A", "--field-selector", "involvedObject.kind=Node", "-o",
			`jsonpath={range .items[*]}{.reason} {end}`)
		if !strings.Contains(out, "NodeHasDiskPressure") {
			return "got " + out
		}
		return ""
	})

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	p.nodeIs("DiskPressure", "False")
	p.waitForField("pod", "waits", ".status.phase", "Running")
	if has := taints(); strings.Contains(has, "pressure") {
		t.Errorf("taint not removed: %s", has)
	}
}
