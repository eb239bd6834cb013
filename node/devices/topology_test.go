package devices

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestGroupsOfDevices(t *testing.T) {
	t.Parallel()
	topology := func(nodes ...int64) *pluginapi.TopologyInfo {
		out := &pluginapi.TopologyInfo{}
		for _, n := range nodes {
			out.Nodes = append(out.Nodes, &pluginapi.NUMANode{ID: n})
		}
		return out
	}
	d := New(Options{})
	d.resources["example.com/gpu"] = &deviceResource{name: "example.com/gpu", connected: true, devices: map[string]device{
		"a": {true, numaNodes(topology(0))}, "b": {true, numaNodes(topology(0))}, "c": {true, numaNodes(topology(0, 1))},
		"sick": {false, ""}, "d": {true, numaNodes(nil)},
	}}
	const name = corev1.ResourceName("example.com/gpu")
	d.allocations[allocationKey{"uid", "c", name}] = allocation{IDs: []string{"b", "a", "sick"}}
	d.allocations[allocationKey{"uid", "other", name}] = allocation{IDs: []string{"c"}}
	d.allocations[allocationKey{"uid", "c", "example.com/gone"}] = allocation{IDs: []string{"x"}} // without a plugin
	got := fmt.Sprint(d.Allocated("uid", "c"))
	if want := "[{example.com/gone [x] []} {example.com/gpu [sick] []} {example.com/gpu [a b] [0]}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	got = fmt.Sprint(d.AllocatableDevices())
	if want := "[{example.com/gpu [d] []} {example.com/gpu [a b] [0]} {example.com/gpu [c] [0 1]}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
