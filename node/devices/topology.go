package devices

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Group is devices of a resource on the same NUMA nodes.
type Group struct {
	Resource corev1.ResourceName
	IDs      []string // sorted
	NUMA     []int64  // empty: not known
}

// numaNodes returns the NUMA nodes of a device, separated by commas.
func numaNodes(t *pluginapi.TopologyInfo) string {
	var out []string
	for _, n := range t.GetNodes() {
		out = append(out, strconv.FormatInt(n.GetID(), 10))
	}
	return strings.Join(out, ",")
}

// Allocated returns the devices that are allocated to a container, by resource and NUMA nodes.
func (d *Manager) Allocated(pod types.UID, container string) (out []Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, h := range d.allocations {
		if k.pod == pod && k.container == container {
			out = append(out, d.groups(k.resource, h.IDs)...)
		}
	}
	sortGroups(out)
	return out
}

// AllocatableDevices returns the healthy devices, allocated or not, by resource and NUMA nodes.
func (d *Manager) AllocatableDevices() (out []Group) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, r := range d.resources {
		out = append(out, d.groups(name, r.healthyIDs())...)
	}
	sortGroups(out)
	return out
}

// groups groups devices of a resource by their NUMA nodes. The caller holds mu.
func (d *Manager) groups(name corev1.ResourceName, ids []string) (out []Group) {
	by := map[string][]string{}
	for _, id := range ids {
		numa := ""
		if r := d.resources[name]; r != nil {
			numa = r.devices[id].numa
		}
		by[numa] = append(by[numa], id)
	}
	for _, numa := range slices.Sorted(maps.Keys(by)) {
		g := Group{Resource: name, IDs: slices.Sorted(slices.Values(by[numa]))}
		for text := range strings.SplitSeq(numa, ",") {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				g.NUMA = append(g.NUMA, n)
			}
		}
		out = append(out, g)
	}
	return out
}

func sortGroups(list []Group) {
	slices.SortFunc(list, func(a, b Group) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), slices.Compare(a.NUMA, b.NUMA))
	})
}
