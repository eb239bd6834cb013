package devices

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// NodeResources is what the node has of devices, in pieces by resource. A resource
// whose plugin is away is listed with nothing.
type NodeResources struct {
	Capacity    corev1.ResourceList // all that plugins list
	Allocatable corev1.ResourceList // the healthy ones
	// AdmissionCapacity is what admission counts with: beside the healthy those that are held
	// and are not healthy any more. Their pods count as users of them; without
	// that a broken device would take a good one away from the next pod.
	AdmissionCapacity corev1.ResourceList
}

// NodeResources is what the node has now.
func (d *Manager) NodeResources() NodeResources {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := NodeResources{Capacity: corev1.ResourceList{}, Allocatable: corev1.ResourceList{}, AdmissionCapacity: corev1.ResourceList{}}
	for name, r := range d.resources {
		healthy := len(r.healthyOnes())
		room := healthy
		if healthy > 0 {
			for id := range d.held.given(name) {
				if !r.healthy(id) {
					room++
				}
			}
		}
		o.Capacity[name], o.Allocatable[name], o.AdmissionCapacity[name] = pieces(len(r.devices)), pieces(healthy), pieces(room)
	}
	return o
}

func pieces(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// ResourceStats are those of one resource.
type ResourceStats struct {
	Resource                   string
	Connected                  bool // its plugin is there
	Listed, Healthy, Allocated int
}

// Stats tells of every resource, by name.
func (d *Manager) Stats() []ResourceStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]ResourceStats, 0, len(d.resources))
	for name, r := range d.resources {
		out = append(out, ResourceStats{
			Resource: string(name), Connected: r.live,
			Listed: len(r.devices), Healthy: len(r.healthyOnes()), Allocated: len(d.held.given(name)),
		})
	}
	slices.SortFunc(out, func(a, b ResourceStats) int { return cmp.Compare(a.Resource, b.Resource) })
	return out
}
