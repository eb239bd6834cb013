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
	*u = u.clone()
	u.add(pod)
}

// Remove gives back what Add took for this pod, whose spec must not have
// changed in between.
func (u *Used) Remove(pod *corev1.Pod) {
	*u = u.clone()
	u.remove(pod)
}

// AddBound takes what a pod that another node's agent has let in may hold, by its
// status too: see podspec.HeldRequests.
func (u *Used) AddBound(pod *corev1.Pod) {
	*u = u.clone()
	u.addRequests(pod, podspec.RequestsWithStatus(pod))
}

// RemoveBound gives back what AddPlaced took for this pod, which must not have
// changed in between.
func (u *Used) RemoveBound(pod *corev1.Pod) {
	*u = u.clone()
	u.removeRequests(pod, podspec.RequestsWithStatus(pod))
}

// clone is a copy that add and remove may change in place.
func (u *Used) clone() Used {
	c := Used{Pods: u.Pods, Requests: u.Requests.DeepCopy(), Ports: maps.Clone(u.Ports)}
	if c.Requests == nil {
		c.Requests = corev1.ResourceList{}
	}
	if c.Ports == nil {
		c.Ports = map[podspec.HostPort]int{}
	}
	return c
}

func (u *Used) add(pod *corev1.Pod)    { u.addRequests(pod, podspec.Requests(pod)) }
func (u *Used) remove(pod *corev1.Pod) { u.removeRequests(pod, podspec.Requests(pod)) }

func (u *Used) addRequests(pod *corev1.Pod, requests corev1.ResourceList) {
	u.Pods++
	for name, q := range requests {
		u.Requests[name] = sum(u.Requests[name], q)
	}
	for _, p := range podspec.HostPorts(pod) {
		u.Ports[p]++
	}
}

func (u *Used) removeRequests(pod *corev1.Pod, requests corev1.ResourceList) {
	u.Pods = max(0, u.Pods-1)
	for name, q := range requests {
		left, ok := u.Requests[name]
		if !ok {
			continue
		}
		left = left.DeepCopy()
		left.Sub(q)
		if left.Sign() <= 0 {
			delete(u.Requests, name)
			continue
		}
		u.Requests[name] = left
	}
	for _, p := range podspec.HostPorts(pod) {
		if u.Ports[p]--; u.Ports[p] <= 0 {
			delete(u.Ports, p)
		}
	}
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
