package devices

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// allocations maps containers to their devices. A device has one owner, except that later
// containers of a pod reuse the devices of its init containers.
type allocations map[allocationKey]allocation

// allocationKey identifies a resource of a container.
type allocationKey struct {
	pod       types.UID
	container string
	resource  corev1.ResourceName
}

// allocation is the devices of one resource that a container has.
type allocation struct {
	IDs        []string
	Init       bool          // of an init container that ends before others start
	Response   *plan.Devices // response of Allocate; nil: not called yet
	Boot       string        // boot ID at the time of the response
	NoPreStart bool          // the plugin does not require PreStartContainer
}

// reusable reports whether a container that requests n devices can start without the plugin:
// Allocate has succeeded in this boot.
func (h allocation) reusable(n int, boot string) bool {
	return h.NoPreStart && h.Response != nil && h.Boot == boot && len(h.IDs) == n
}

// free deletes all allocations of a pod. It reports whether there were any.
func (l allocations) free(pod types.UID) (freed bool) {
	for k := range l {
		if k.pod == pod {
			delete(l, k)
			freed = true
		}
	}
	return freed
}

// allocatedIDs returns the allocated devices of a resource.
func (l allocations) allocatedIDs(resource corev1.ResourceName) map[string]bool {
	out := map[string]bool{}
	for k, h := range l {
		if k.resource == resource {
			for _, id := range h.IDs {
				out[id] = true
			}
		}
	}
	return out
}

// candidates are the devices that can be allocated to a container, each list sorted.
type candidates struct {
	own  []string // allocated to it or to init containers of its pod: used first
	free []string // not allocated
}

// candidatesFor returns the candidates of a container among the healthy devices. Its own devices
// come before those of init containers.
func (l allocations) candidatesFor(s allocationKey, healthy []string) (c candidates) {
	type owners struct{ own, inits, others bool }
	by := map[string]owners{}
	for k, h := range l {
		if k.resource != s.resource {
			continue
		}
		for _, id := range h.IDs {
			x := by[id]
			switch {
			case k == s:
				x.own = true
			case k.pod == s.pod && h.Init:
				x.inits = true
			default:
				x.others = true
			}
			by[id] = x
		}
	}
	var inherited []string
	for _, id := range healthy {
		switch x := by[id]; {
		case x.own:
			c.own = append(c.own, id)
		case x.others:
		case x.inits:
			inherited = append(inherited, id)
		default:
			c.free = append(c.free, id)
		}
	}
	c.own = append(c.own, inherited...)
	return c
}

// enough reports whether there are n candidates.
func (c candidates) enough(n int) bool { return len(c.own)+len(c.free) >= n }

// pick returns n devices: first the container's own, then the preferred ones, then free ones. The
// caller checks that there are enough.
func (c candidates) pick(n int, preferred []string) []string {
	out := slices.Clone(c.own[:min(n, len(c.own))])
	for _, list := range [][]string{preferred, c.free} {
		for _, id := range list {
			if len(out) < n && slices.Contains(c.free, id) && !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
	}
	slices.Sort(out)
	return out
}
