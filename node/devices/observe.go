package devices

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// request is a container's request for one resource.
type request struct {
	name corev1.ResourceName
	n    int
}

// requests returns a container's requests, sorted by name. Requests and limits of extended
// resources are equal.
func requests(c *corev1.Container) (out []request) {
	for name, q := range c.Resources.Limits {
		if n := q.Value(); n > 0 && podspec.IsExtended(name) {
			out = append(out, request{name, int(n)})
		}
	}
	slices.SortFunc(out, func(a, b request) int { return strings.Compare(string(a.name), string(b.name)) })
	return out
}

// requested returns a container's requests for device plugins. On a node that has joined a server,
// an extended resource that no plugin has ever registered was added to the Node by an administrator
// and needs no allocation.
func (d *Manager) requested(pod *corev1.Pod, c *corev1.Container) []request {
	all := requests(c)
	if !d.opt.Joined || len(all) == 0 {
		return all
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(all, func(w request) bool {
		_, allocated := d.allocations[allocationKey{pod.UID, c.Name, w.name}]
		return d.resources[w.name] == nil && !allocated
	})
}

// Observe returns, by container name, the allocated devices and what a start would have to wait
// for. Containers without requests are omitted. The result may be nil.
func (d *Manager) Observe(pod *corev1.Pod) (out map[string]plan.DeviceStatus) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if ws := d.requested(pod, &list[i]); len(ws) > 0 {
				if out == nil {
					out = map[string]plan.DeviceStatus{}
				}
				out[list[i].Name] = d.observe(pod, list[i].Name, ws)
			}
		}
	}
	return out
}

func (d *Manager) observe(pod *corev1.Pod, container string, ws []request) (s plan.DeviceStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var waits []string
	for _, w := range ws {
		k := allocationKey{pod.UID, container, w.name}
		if why := d.unavailableReason(k, w.n); why != "" {
			waits = append(waits, why)
		}
		if h, allocated := d.allocations[k]; allocated {
			s.Allocated = append(s.Allocated, d.statusOf(w.name, h.IDs))
		}
	}
	s.Pending = strings.Join(waits, "; ")
	return s
}

// unavailableReason returns why n devices cannot be allocated to a container now. Empty: they can.
// The caller holds mu.
func (d *Manager) unavailableReason(k allocationKey, n int) string {
	r := d.resources[k.resource]
	switch {
	case (r == nil || !r.connected) && d.allocations[k].reusable(n, d.opt.BootID):
		return ""
	case r == nil || !r.connected && r.plugin == nil:
		return fmt.Sprintf("%s: no device plugin registered", k.resource)
	case !r.connected:
		return fmt.Sprintf("%s: device plugin not responding", k.resource)
	}
	healthy := r.healthyIDs()
	if c := d.allocations.candidatesFor(k, healthy); !c.enough(n) {
		return fmt.Sprintf(
			"%s: requested: %d, healthy and free: %d, listed: %d",
			k.resource,
			n,
			len(c.own)+len(c.free),
			len(r.devices),
		)
	}
	return ""
}

// statusOf returns the health of a container's devices.
func (d *Manager) statusOf(name corev1.ResourceName, ids []string) corev1.ResourceStatus {
	s := corev1.ResourceStatus{Name: name}
	r := d.resources[name]
	for _, id := range ids {
		health := corev1.ResourceHealthStatusUnknown
		if r != nil && r.connected {
			health = corev1.ResourceHealthStatusUnhealthy
			if r.healthy(id) {
				health = corev1.ResourceHealthStatusHealthy
			}
		}
		s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
	}
	return s
}
