package pair

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"berth/test/hosts"
)

const nullDevice = "example.com/null"

// startDevicePlugin starts a device plugin, which is killed at the end of the test.
func (p *Pair) startDevicePlugin(count int) *hosts.DevicePlugin {
	p.t.Helper()
	dp, err := p.Agent.StartDevicePlugin(p.t.Context(), nullDevice, count)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(dp.Kill)
	return dp
}

// waitForDevices waits until the Node has the given capacity and allocatable of the device.
func (p *Pair) waitForDevices(capacity, allocatable string) {
	p.t.Helper()
	p.waitForField("node", p.Node, `.status.capacity.example\.com/null`, capacity)
	p.waitForField("node", p.Node, `.status.allocatable.example\.com/null`, allocatable)
}

// devicePod returns the manifest of an unscheduled pod that requests a device.
func (p *Pair) devicePod(name string) string {
	return strings.Replace(p.boundDevicePod(name), "  nodeName: "+p.Node+"\n", "", 1)
}

// boundDevicePod returns the manifest of a pod that requests a device and bypasses the scheduler.
func (p *Pair) boundDevicePod(name string) string {
	return p.pod(name, "resources: {limits: {"+nullDevice+": 1}}", "sleep")
}

// checkPodResources checks that the PodResources API names the devices of pods "one" and "two".
func (p *Pair) checkPodResources() {
	p.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.Agent.RootDir, "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	seen := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		r, err := client.Get(p.t.Context(), &podresourcesv1.GetPodResourcesRequest{PodName: name, PodNamespace: "default"})
		if err != nil {
			p.t.Fatal(err)
		}
		for _, c := range r.GetPodResources().GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					seen[d.GetResourceName()+" "+id] = true
				}
			}
		}
	}
	all, err := client.GetAllocatableResources(p.t.Context(), &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil || len(seen) != 2 || !seen[nullDevice+" null-1"] || len(all.GetDevices()) != 1 ||
		len(all.GetDevices()[0].GetDeviceIds()) != 2 {
		p.t.Errorf("got devices %v of pods, %v of the node, %v", seen, all, err)
	}
}

// TestDevices checks that the scheduler counts the resources of device plugins, and that the node
// rejects a pod without a free device. Pods wait for their device plugin after a reboot.
func TestDevices(t *testing.T) {
	t.Parallel()
	p := startPair(t, pairOptions{})
	dp := p.startDevicePlugin(2)
	p.waitForDevices("2", "2")
	p.Apply(t, p.devicePod("one"))
	p.Apply(t, p.devicePod("two"))
	p.waitForField("pod", "one", readyStatus, "True")
	p.waitForField("pod", "two", readyStatus, "True")
	p.checkPodResources()
	p.Apply(t, p.devicePod("three"))
	p.waitUntil("pod three to be unschedulable", func() string {
		message := p.field("pod", "three", `.status.conditions[?(@.type=="PodScheduled")].message`)
		if !strings.Contains(message, "Insufficient "+nullDevice) {
			return message
		}
		return ""
	})
	p.Apply(t, p.boundDevicePod("forced"))
	p.waitForField("pod", "forced", ".status.phase", "Failed")
	p.waitForField("pod", "forced", ".status.reason", "OutOf"+nullDevice)
	if got := p.field("pod", "forced", ".status.message"); !strings.Contains(got,
		"Node didn't have enough resource: "+nullDevice+", requested: 1, used: 2, capacity: 2") {
		t.Errorf("got rejection message %q", got)
	}
	if err := dp.Send("unhealthy null-1"); err != nil {
		t.Fatal(err)
	}
	p.waitForDevices("2", "1")
	dp.Kill()
	p.waitForDevices("2", "0")
	// The node boots before the device plugin registers: the pods wait for it.
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
	p.waitForDevices("0", "0")
	p.waitForField("pod", "one", ".status.containerStatuses[0].state.waiting.reason", "DevicesNotReady")
	p.startDevicePlugin(2)
	p.waitForDevices("2", "2")
	p.waitForField("pod", "one", readyStatus, "True")
	p.waitForField("pod", "two", readyStatus, "True")
	if now := p.field("pod", "one", ".metadata.uid"); now != uid {
		t.Errorf("got pod UID %s, want %s", now, uid)
	}
	p.Kubectl(t, "delete", "pods", "--all", "--timeout=4m")
}
