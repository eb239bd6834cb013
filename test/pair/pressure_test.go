package pair

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDiskPressure fills the file system of the node. The Node has the condition DiskPressure and a
// taint, and new pods are rejected until space is freed.
func TestDiskPressure(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{Nodefs: "size=64m", Config: map[string]any{
		"evictionHard":                     map[string]string{"nodefs.available": "50%", "memory.available": "100Mi"},
		"evictionPressureTransitionPeriod": "15s",
	}})
	p.Apply(t, p.pod("before", "", "sleep"))
	p.waitForField("pod", "before", ".status.phase", "Running")
	p.waitForNodeCondition("DiskPressure", "False")
	ballast := filepath.Join(p.Agent.RootDir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 33<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	p.waitForNodeCondition("DiskPressure", "True")
	taints := func() string { return p.field("node", p.Node, ".spec.taints[*].key") }
	p.waitUntil("the taint", func() string {
		if got := taints(); !strings.Contains(got, "node.kubernetes.io/disk-pressure") {
			return "got " + got
		}
		return ""
	})
	p.waitForNodeCondition("Ready", "True")
	p.waitForNodeCondition("MemoryPressure", "False")

	// An unscheduled pod stays pending. The node rejects a bound pod.
	p.Apply(t, strings.Replace(p.pod("waits", "", "sleep"), "  nodeName: "+p.Node+"\n", "", 1))
	p.waitUntil("pod waits to be unschedulable", func() string {
		text := p.field("pod", "waits", `.status.conditions[?(@.type=="PodScheduled")].message`)
		if !strings.Contains(text, "1 node(s) had untolerated taint(s)") {
			return "got " + text
		}
		return ""
	})
	p.Apply(t, p.pod("bound", "", "sleep"))
	p.waitForField("pod", "bound", ".status.phase", "Failed")
	p.waitForField("pod", "bound", ".status.reason", "Evicted")
	p.waitForField("pod", "bound", ".status.message", "Pod was rejected: The node had condition: [DiskPressure]. ")
	p.waitUntil("the event NodeHasDiskPressure", func() string {
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
	p.waitForNodeCondition("DiskPressure", "False")
	p.waitForField("pod", "waits", ".status.phase", "Running")
	if got := taints(); strings.Contains(got, "pressure") {
		t.Errorf("taint not removed: %s", got)
	}
}
