package admission

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/podspec"
)

// Used is the sum of the resources of admitted pods. The zero value is an empty node. A copy does
// not change with the original and may be passed to other goroutines.
type Used struct {
	Pods     int
	Requests corev1.ResourceList      // sum of effective requests
	Ports    map[podspec.HostPort]int // number of pods by host port
}

// Add adds the resources of a pod.
func (u *Used) Add(pod *corev1.Pod) {
	*u = u.clone()
	u.add(pod)
}

// Remove subtracts what Add has added for this pod, whose spec must not have changed in between.
func (u *Used) Remove(pod *corev1.Pod) {
	*u = u.clone()
	u.remove(pod)
}

// AddBound adds the resources that a pod bound to another agent's node may hold, according to its
// status too, see podspec.RequestsWithStatus.
func (u *Used) AddBound(pod *corev1.Pod) {
	*u = u.clone()
	u.addRequests(pod, podspec.RequestsWithStatus(pod))
}

// RemoveBound subtracts what AddBound has added for this pod, which must not have changed in
// between.
func (u *Used) RemoveBound(pod *corev1.Pod) {
	*u = u.clone()
	u.removeRequests(pod, podspec.RequestsWithStatus(pod))
}

// clone returns a copy that add and remove may change in place.
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

// sum adds two quantities without changing them.
func sum(a, b resource.Quantity) resource.Quantity {
	if a.IsZero() {
		return b.DeepCopy()
	}
	out := a.DeepCopy()
	out.Add(b)
	return out
}
