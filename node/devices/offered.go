package devices

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Offer is what the node has of devices, in pieces by resource. A resource
// whose plugin is away is listed with nothing.
type Offer struct {
	Capacity    corev1.ResourceList // all that plugins list
	Allocatable corev1.ResourceList // the healthy ones
	// Room is what admission counts with: beside the healthy those that are held
	// and are not healthy any more. Their pods count as users of them; without
	// that a broken device would take a good one away from the next pod.
	Room corev1.ResourceList
}

// Offered is what the node has now.
func (d *Devices) Offered() Offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := Offer{Capacity: corev1.ResourceList{}, Allocatable: corev1.ResourceList{}, Room: corev1.ResourceList{}}
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
		o.Capacity[name], o.Allocatable[name], o.Room[name] = pieces(len(r.devices)), pieces(healthy), pieces(room)
	}
	return o
}

func pieces(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// Figures are those of one resource.
type Figures struct {
	Resource               string
	Live                   bool // its plugin is there
	Listed, Healthy, Given int
}

// Figures tells of every resource, by name.
func (d *Devices) Figures() []Figures {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Figures, 0, len(d.resources))
	for name, r := range d.resources {
		out = append(out, Figures{
			Resource: string(name), Live: r.live,
			Listed: len(r.devices), Healthy: len(r.healthyOnes()), Given: len(d.held.given(name)),
		})
	}
	slices.SortFunc(out, func(a, b Figures) int { return cmp.Compare(a.Resource, b.Resource) })
	return out
}
