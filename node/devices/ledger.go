package devices

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/plan"
)

// ledger says who holds which devices. A device has one holder, but for init
// containers: what they held, the containers of the pod that come later take over.
type ledger map[slot]holding

// slot is one resource of one container.
type slot struct {
	pod       types.UID
	container string
	resource  corev1.ResourceName
}

// holding is what a container holds of a resource.
type holding struct {
	IDs    []string
	Init   bool          // of an init container that ends before others start
	Answer *plan.Devices // of Allocate; nil: it has to be asked
	Boot   string        // of the host, in which it was asked
	Alone  bool          // its plugin does not want to hear of each start
}

// suffices reports whether a container that wants n can start with that although the
// plugin is away: all was made ready in this boot.
func (h holding) suffices(n int, boot string) bool {
	return h.Alone && h.Answer != nil && h.Boot == boot && len(h.IDs) == n
}

// free drops all that a pod holds, and reports whether that was anything.
func (l ledger) free(pod types.UID) (held bool) {
	for k := range l {
		if k.pod == pod {
			delete(l, k)
			held = true
		}
	}
	return held
}

// given returns the devices of a resource that are held.
func (l ledger) given(resource corev1.ResourceName) map[string]bool {
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

// choice is what a container can have of a resource, each list in order.
type choice struct {
	own  []string // held by it already, or by init containers of its pod: to be taken first
	free []string // held by nobody
}

// choices sorts the healthy devices of a resource into what the container of a
// slot can have. What it held itself comes before what init containers held.
func (l ledger) choices(s slot, healthy []string) (c choice) {
	type holder struct{ mine, inits, others bool }
	by := map[string]holder{}
	for k, h := range l {
		if k.resource != s.resource {
			continue
		}
		for _, id := range h.IDs {
			x := by[id]
			switch {
			case k == s:
				x.mine = true
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
		case x.mine:
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

// enough reports whether n can be had.
func (c choice) enough(n int) bool { return len(c.own)+len(c.free) >= n }

// pick takes n: what is the container's own, then what the plugin prefers, then
// the first that are free. The caller knows that there are enough.
func (c choice) pick(n int, preferred []string) []string {
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
