package devices

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// NodeResources are the numbers of devices by resource. A resource without a connected plugin has
// none.
type NodeResources struct {
	Capacity    corev1.ResourceList // listed devices
	Allocatable corev1.ResourceList // healthy devices
	// AdmissionCapacity is the capacity for admission: healthy devices, and unhealthy ones that are
	// allocated. Their pods count as users, so that an unhealthy device does not take a healthy one
	// from the next pod.
	AdmissionCapacity corev1.ResourceList
}

// NodeResources returns the current numbers of devices.
func (d *Manager) NodeResources() NodeResources {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := NodeResources{
		Capacity:          corev1.ResourceList{},
		Allocatable:       corev1.ResourceList{},
		AdmissionCapacity: corev1.ResourceList{},
	}
	for name, r := range d.resources {
		healthy := len(r.healthyIDs())
		usable := healthy
		if healthy > 0 {
			for id := range d.allocations.allocatedIDs(name) {
				if !r.healthy(id) {
					usable++
				}
			}
		}
		o.Capacity[name], o.Allocatable[name], o.AdmissionCapacity[name] = count(
			len(r.devices),
		), count(
			healthy,
		), count(
			usable,
		)
	}
	return o
}

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// ResourceStats are the numbers of devices of one resource.
type ResourceStats struct {
	Resource                   string
	Connected                  bool // the plugin is connected
	Listed, Healthy, Allocated int
}

// ReportStats calls report with the numbers of each resource.
func (d *Manager) ReportStats(report func(resource string, listed, healthy, allocated int)) {
	for _, s := range d.Stats() {
		report(s.Resource, s.Listed, s.Healthy, s.Allocated)
	}
}

// Stats returns the numbers of all resources by name.
func (d *Manager) Stats() []ResourceStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]ResourceStats, 0, len(d.resources))
	for name, r := range d.resources {
		out = append(out, ResourceStats{
			Resource: string(name), Connected: r.connected,
			Listed: len(r.devices), Healthy: len(r.healthyIDs()), Allocated: len(d.allocations.allocatedIDs(name)),
		})
	}
	slices.SortFunc(out, func(a, b ResourceStats) int { return cmp.Compare(a.Resource, b.Resource) })
	return out
}
