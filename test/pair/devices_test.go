package pair

import (
	"strings"
	"testing"

	"berth/test/hosts"
)

const null = "example.com/null"

// plugin starts a device plugin next to the agent. It is stopped with the test.
func (p *Pair) plugin(count int) *hosts.DevicePlugin {
	p.t.Helper()
	dp, err := p.Agent.StartDevicePlugin(p.t.Context(), null, count)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(dp.Kill)
	return dp
}

// nodeHas waits for the node's capacity and allocatable of the device.
func (p *Pair) nodeHas(capacity, allocatable string) {
	p.t.Helper()
	p.waitForField("node", p.Node, `.status.capacity.example\.com/null`, capacity)
	p.waitForField("node", p.Node, `.status.allocatable.example\.com/null`, allocatable)
}

// devicePod is a pod that requests a device and is scheduled by the scheduler.
func (p *Pair) devicePod(name string) string {
	return strings.Replace(p.boundDevicePod(name), "  nodeName: "+p.Node+"\n", "", 1)
}

// boundDevicePod bypasses the scheduler.
func (p *Pair) boundDevicePod(name string) string {
	return p.pod(name, "resources: {limits: {"+null+": 1}}", "sleep")
}

// TestDevices: the scheduler uses the resources of device plugins. The node rejects a pod that
// bypasses the scheduler if no device is free.
func TestDevices(t *testing.T) {
	t.Parallel()
	p := start(t, pairOptions{})
	dp := p.plugin(2)
	p.nodeHas("2", "2")
	p.Apply(t, p.devicePod("one"))
	p.Apply(t, p.devicePod("two"))
	p.waitForField("pod", "one", ready, "True")
	p.waitForField("pod", "two", ready, "True")
	p.Apply(t, p.devicePod("three"))
	p.until("the scheduler to miss a device", func() string {
		if why := p.field("pod", "three", `.status.conditions[?(@.type=="PodScheduled")].message`); !strings.Contains(why,
			"Insufficient "+null) {
			return why
		}
		return ""
	})
	p.Apply(t, p.boundDevicePod("forced"))
	p.waitForField("pod", "forced", ".status.phase", "Failed")
	p.waitForField("pod", "forced", ".status.reason", "OutOf"+null)
	if got := p.field("pod", "forced", ".status.message"); !strings.Contains(got,
		"Node didn't have enough resource: "+null+", requested: 1, used: 2, capacity: 2") {
		t.Errorf("rejected with %q", got)
	}
	if err := dp.Send("unhealthy null-1"); err != nil {
		t.Fatal(err)
	}
	p.nodeHas("2", "1")
	dp.Kill()
	p.nodeHas("2", "0")
	// The node boots before the plugin registers: pods wait for it.
	uid := p.field("pod", "one", ".metadata.uid")
	if err := p.Host.PowerLoss(); err != nil {
		t.Fatal(err)
	}
	if err := p.Host.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.nodeHas("0", "0")
	p.waitForField("pod", "one", ".status.containerStatuses[0].state.waiting.reason", "DevicesNotReady")
	p.plugin(2)
	p.nodeHas("2", "2")
	p.waitForField("pod", "one", ready, "True")
	p.waitForField("pod", "two", ready, "True")
	if now := p.field("pod", "one", ".metadata.uid"); now != uid {
		t.Errorf("pod %s became %s", uid, now)
	}
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=60s")
}
