package devices

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// want is what a container asks for of one resource.
type want struct {
	name corev1.ResourceName
	n    int
}

// wants lists what a container asks for, by name. Of an extended resource
// request and limit are the same.
func wants(c *corev1.Container) (out []want) {
	for name, q := range c.Resources.Limits {
		if n := q.Value(); n > 0 && podspec.IsExtended(name) {
			out = append(out, want{name, int(n)})
		}
	}
	slices.SortFunc(out, func(a, b want) int { return strings.Compare(string(a.name), string(b.name)) })
	return out
}

// asked lists what a container asks of device plugins: on a node that has joined a
// server, an extended resource that no plugin has ever registered is one that an
// administrator has given the Node, and nothing has to be done for it here.
func (d *Manager) asked(pod *corev1.Pod, c *corev1.Container) []want {
	all := wants(c)
	if !d.opt.Joined || len(all) == 0 {
		return all
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(all, func(w want) bool {
		_, holds := d.held[slot{pod.UID, c.Name, w.name}]
		return d.resources[w.name] == nil && !holds
	})
}

// Observe tells, by container, what each has of devices and what its start would
// have to wait for. Containers that want none are not in it; nil: none does.
func (d *Manager) Observe(pod *corev1.Pod) (out map[string]plan.DevicesSeen) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if ws := d.asked(pod, &list[i]); len(ws) > 0 {
				if out == nil {
					out = map[string]plan.DevicesSeen{}
				}
				out[list[i].Name] = d.seen(pod, list[i].Name, ws)
			}
		}
	}
	return out
}

func (d *Manager) seen(pod *corev1.Pod, container string, ws []want) (s plan.DevicesSeen) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var waits []string
	for _, w := range ws {
		k := slot{pod.UID, container, w.name}
		if why := d.lacks(k, w.n); why != "" {
			waits = append(waits, why)
		}
		if h, holds := d.held[k]; holds {
			s.Given = append(s.Given, d.statusOf(w.name, h.IDs))
		}
	}
	s.Waits = strings.Join(waits, "; ")
	return s
}

// lacks says why a container cannot have n devices now; empty: it can. The caller
// holds mu.
func (d *Manager) lacks(k slot, n int) string {
	r := d.resources[k.resource]
	switch {
	case (r == nil || !r.live) && d.held[k].suffices(n, d.opt.BootID):
		return ""
	case r == nil || !r.live && r.plugin == nil:
		return fmt.Sprintf("%s: no device plugin has registered it", k.resource)
	case !r.live:
		return fmt.Sprintf("%s: its device plugin does not answer", k.resource)
	}
	healthy := r.healthyOnes()
	if c := d.held.choices(k, healthy); !c.enough(n) {
		return fmt.Sprintf("%s: requested: %d, healthy and free: %d, listed: %d", k.resource, n, len(c.own)+len(c.free), len(r.devices))
	}
	return ""
}

// statusOf tells how the devices of a container are.
func (d *Manager) statusOf(name corev1.ResourceName, ids []string) corev1.ResourceStatus {
	s := corev1.ResourceStatus{Name: name}
	r := d.resources[name]
	for _, id := range ids {
		health := corev1.ResourceHealthStatusUnknown
		if r != nil && r.live {
			health = corev1.ResourceHealthStatusUnhealthy
			if r.healthy(id) {
				health = corev1.ResourceHealthStatusHealthy
			}
		}
		s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
	}
	return s
}
