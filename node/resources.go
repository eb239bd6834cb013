package node

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/nodeconfig"
	"berth/node/cgroups"
	"berth/node/pressure"
)

// Resources are the resources of this host under a configuration.
type Resources struct {
	Capacity    corev1.ResourceList
	Allocatable corev1.ResourceList // what pods may request
	PodsLimit   corev1.ResourceList // limit of the cgroup of all pods
}

// ConfiguredResources returns the resources of this host. It returns an error if more is reserved
// than the host has.
func ConfiguredResources(c *nodeconfig.Config) (r Resources, err error) {
	if r.Capacity, err = Capacity(c.RootDir, MaxPods(c.Pods.Max, c.Pods.PerCore)); err != nil {
		return r, err
	}
	if err := ValidateReserved(withPIDs(r.Capacity), c.Reserved.System, c.Reserved.Kube); err != nil {
		return r, err
	}
	r.Allocatable = Allocatable(r.Capacity, c.Reserved.System, c.Reserved.Kube, c.Eviction.Reserve(r.Capacity))
	r.PodsLimit = podsLimit(c, r.Capacity)
	return r, nil
}

// withPIDs adds the maximum number of processes to a capacity. It can be reserved, and is not part
// of the Node.
func withPIDs(capacity corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(capacity)
	if _, most := Processes(); most > 0 {
		out[cgroups.PIDs] = *resource.NewQuantity(most, resource.DecimalSI)
	}
	return out
}

// podsLimit returns the limit of the cgroup of all pods: the capacity, less the reserved resources if
// that is enforced. Memory below the eviction threshold can be used until eviction reclaims it.
// Huge pages are not subtracted, because the kernel accounts them separately.
func podsLimit(c *nodeconfig.Config, capacity corev1.ResourceList) corev1.ResourceList {
	if !c.Cgroups.EnforcePods {
		return capacity
	}
	all := Unreserved(withPIDs(capacity), c.Reserved.System, c.Reserved.Kube)
	if s, k := c.Reserved.System[cgroups.PIDs], c.Reserved.Kube[cgroups.PIDs]; s.IsZero() && k.IsZero() {
		delete(all, cgroups.PIDs) // the kernel's own limit applies
	}
	return all
}

// PressureConfig returns the configured eviction thresholds.
func PressureConfig(c *nodeconfig.Config) pressure.Config {
	out := pressure.Config{
		TransitionPeriod: c.Eviction.PressureTransitionPeriod,
		WorkingSetOnly:   c.Eviction.WorkingSetOnly,
	}
	for _, t := range c.Eviction.Thresholds {
		p := pressure.Threshold{
			Signal: pressure.Signal(t.Signal), Hard: t.Hard, Percent: t.Percent, GracePeriod: t.Grace,
			MinReclaimPercent: t.MinReclaimPercent,
		}
		if t.Quantity != nil {
			p.Quantity = t.Quantity.Value()
		}
		if t.MinReclaim != nil {
			p.MinReclaim = t.MinReclaim.Value()
		}
		out.Thresholds = append(out.Thresholds, p)
	}
	isAllocatable := func(t pressure.Threshold) bool { return t.Signal == pressure.AllocatableMemoryAvailable }
	if !c.Cgroups.EnforcePods || slices.ContainsFunc(out.Thresholds, isAllocatable) {
		return out
	}
	// as upstream: if pods share a limit, the threshold applies to that limit as well
	for _, t := range out.Thresholds {
		if t.Signal == pressure.MemoryAvailable && t.Hard {
			t.Signal = pressure.AllocatableMemoryAvailable
			out.Thresholds = append(out.Thresholds, t)
			break
		}
	}
	return out
}
