package admission

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// Used is what the pods that were let in take of a node. The zero value is an
// empty node. A copy stays as it is when the original changes: it may be handed
// to other goroutines.
type Used struct {
	Pods     int
	Requests corev1.ResourceList      // effective requests, added up
	Ports    map[podspec.HostPort]int // ports of the host, by number of pods that have them
}

// Add takes what the pod needs.
func (u *Used) Add(pod *corev1.Pod) {
	u.Pods++
	list := u.Requests.DeepCopy()
	if list == nil {
		list = corev1.ResourceList{}
	}
	for name, q := range podspec.Requests(pod) {
		list[name] = sum(list[name], q)
	}
	u.Requests = list

	ports := maps.Clone(u.Ports)
	if ports == nil {
		ports = map[podspec.HostPort]int{}
	}
	for _, p := range podspec.HostPorts(pod) {
		ports[p]++
	}
	u.Ports = ports
}

// Remove gives back what Add took for this pod, whose spec must not have
// changed in between.
func (u *Used) Remove(pod *corev1.Pod) {
	u.Pods = max(0, u.Pods-1)
	list := u.Requests.DeepCopy()
	for name, q := range podspec.Requests(pod) {
		left, ok := list[name]
		if !ok {
			continue
		}
		left.Sub(q)
		if left.Sign() <= 0 {
			delete(list, name)
			continue
		}
		list[name] = left
	}
	u.Requests = list

	ports := maps.Clone(u.Ports)
	for _, p := range podspec.HostPorts(pod) {
		if ports[p]--; ports[p] <= 0 {
			delete(ports, p)
		}
	}
	u.Ports = ports
}

// sum adds two quantities and leaves both as they are.
func sum(a, b resource.Quantity) resource.Quantity {
	if a.IsZero() {
		return b.DeepCopy()
	}
	out := a.DeepCopy()
	out.Add(b)
	return out
}
