package criconfig

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/podspec"
)

// setMemoryQoS sets memory.high, the usage from which the kernel throttles the container, and
// memory.min or memory.low, the memory that it protects, if the node is configured to and uses
// cgroup v2.
func setMemoryQoS(node Node, pod *corev1.Pod, c *corev1.Container, out *runtimeapi.LinuxContainerResources) {
	if !node.CgroupV2 {
		return
	}
	request := requestedMemory(c)
	qos := podspec.QOSClass(pod)
	if node.MemoryReservation && request > 0 {
		switch qos {
		case corev1.PodQOSGuaranteed:
			unified(out)["memory.min"] = strconv.FormatInt(request, 10)
		case corev1.PodQOSBurstable:
			unified(out)["memory.low"] = strconv.FormatInt(request, 10)
		case corev1.PodQOSBestEffort:
		}
	}
	if qos == corev1.PodQOSGuaranteed {
		return // the limit equals the request
	}
	podLimits := effectiveLimits(pod, c)
	limit := podLimits.Memory().Value()
	if limit == 0 {
		limit = node.Allocatable.Memory().Value()
	}
	if high := MemoryHigh(request, limit, node.MemoryThrottlingFactor, node.PageSize); high > request &&
		request != limit {
		unified(out)["memory.high"] = strconv.FormatInt(high, 10)
	}
}

// MemoryHigh returns the memory.high of a container in bytes: the request plus the fraction factor
// of the difference between limit and request, rounded down to whole pages. 0: no throttling.
func MemoryHigh(request, limit int64, factor float64, page int64) int64 {
	if factor <= 0 || page <= 0 || limit <= request {
		return 0
	}
	high := float64(request) + factor*float64(limit-request)
	return int64(math.Floor(high/float64(page))) * page
}

// requestedMemory returns the container's memory request, which defaults to its limit.
func requestedMemory(c *corev1.Container) int64 {
	q, named := c.Resources.Requests[corev1.ResourceMemory]
	if !named {
		q = c.Resources.Limits[corev1.ResourceMemory]
	}
	return max(q.Value(), 0)
}

// setSwap limits the swap that a container may use in addition to its memory, if the kernel
// supports it.
func setSwap(node Node, pod *corev1.Pod, c *corev1.Container, out *runtimeapi.LinuxContainerResources) {
	switch {
	case !node.CanLimitSwap:
	case node.CgroupV2:
		unified(out)["memory.swap.max"] = strconv.FormatInt(limitedSwap(node, pod, c), 10)
	default:
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	}
}

// limitedSwap returns the container's share of the swap for pods: the same fraction as its request
// of the node's memory.
func limitedSwap(node Node, pod *corev1.Pod, c *corev1.Container) int64 {
	whole := node.Capacity.Memory().Value()
	if node.SwapCapacity <= 0 || whole <= 0 || !podspec.SwapAllowed(pod, c, node.Standalone) {
		return 0
	}
	return int64(float64(requestedMemory(c)) / float64(whole) * float64(node.SwapCapacity))
}
