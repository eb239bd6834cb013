package cgroups

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/podspec"
)

// requested is what the known Burstable pods request, in thousandths of a CPU.
type requested map[types.UID]int64

// add notes a pod; one of another class counts for nothing.
func (r requested) add(pod *corev1.Pod) {
	if podspec.QOSClass(pod) != corev1.PodQOSBurstable {
		delete(r, pod.UID)
		return
	}
	list := podspec.Requests(pod)
	r[pod.UID] = list.Cpu().MilliValue()
}

// shares is the share of the Burstable tier.
func (r requested) shares() uint64 {
	var sum int64
	for _, milliCPU := range r {
		sum += min(milliCPU, maxShares*1000)
	}
	return sharesOf(sum)
}
