package cgroups

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// reserved are the memory requests of the known pods in bytes.
type reserved map[types.UID]reservation

type reservation struct{ guaranteed, burstable int64 }

func (r reserved) add(pod *corev1.Pod) {
	list := podspec.Requests(pod)
	request := max(list.Memory().Value(), 0)
	switch podspec.QOSClass(pod) {
	case corev1.PodQOSGuaranteed:
		r[pod.UID] = reservation{guaranteed: request}
	case corev1.PodQOSBurstable:
		r[pod.UID] = reservation{burstable: request}
	case corev1.PodQOSBestEffort:
		delete(r, pod.UID)
	}
}

func (r reserved) sum() (all reservation) {
	for _, x := range r {
		all.guaranteed += x.guaranteed
		all.burstable += x.burstable
	}
	return all
}

// requested are the CPU requests of the known Burstable pods in millicores.
type requested map[types.UID]int64

// add adds a pod. Other QoS classes do not count.
func (r requested) add(pod *corev1.Pod) {
	if podspec.QOSClass(pod) != corev1.PodQOSBurstable {
		delete(r, pod.UID)
		return
	}
	list := podspec.Requests(pod)
	r[pod.UID] = list.Cpu().MilliValue()
}

// shares returns the shares of the Burstable tier.
func (r requested) shares() uint64 {
	var sum int64
	for _, milliCPU := range r {
		sum += min(milliCPU, maxShares*1000)
	}
	return sharesOf(sum)
}
