package criconfig

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/podspec"
)

// setMemoryQoS says from where on the kernel slows the container down for its memory
// (memory.high), and what it should leave it (memory.min, memory.low), as far as the
// node was told to and the kernel has cgroup v2.
func setMemoryQoS(node Node, pod *corev1.Pod, c *corev1.Container, out *runtimeapi.LinuxContainerResources) {
	if !node.CgroupV2 {
		return
	}
	request := askedMemory(c)
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
		return // what it may have and what it has asked for are the same
	}
	most := limitsOf(pod, c)
	limit := most.Memory().Value()
	if limit == 0 {
		limit = node.Allocatable.Memory().Value()
	}
	if high := MemoryHigh(request, limit, node.MemoryThrottlingFactor, node.PageSize); high > request && request != limit {
		unified(out)["memory.high"] = strconv.FormatInt(high, 10)
	}
}

// MemoryHigh is where the kernel begins to slow down who may have limit bytes and has
// asked for request: so much of the way from one to the other as factor says, in whole
// pages. 0: nowhere.
func MemoryHigh(request, limit int64, factor float64, page int64) int64 {
	if factor <= 0 || page <= 0 || limit <= request {
		return 0
	}
	high := float64(request) + factor*float64(limit-request)
	return int64(math.Floor(high/float64(page))) * page
}

// askedMemory is what the container asks for; nothing said is its limit.
func askedMemory(c *corev1.Container) int64 {
	q, named := c.Resources.Requests[corev1.ResourceMemory]
	if !named {
		q = c.Resources.Limits[corev1.ResourceMemory]
	}
	return max(q.Value(), 0)
}

// setSwap says how much swap a container may have beyond its memory, as far as the
// kernel can limit that.
func setSwap(node Node, pod *corev1.Pod, c *corev1.Container, out *runtimeapi.LinuxContainerResources) {
	switch {
	case !node.CanLimitSwap:
	case node.CgroupV2:
		unified(out)["memory.swap.max"] = strconv.FormatInt(limitedSwap(node, pod, c), 10)
	default:
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	}
}

// limitedSwap is the container's part of the swap that pods may have: that which it
// requests of the node's memory.
func limitedSwap(node Node, pod *corev1.Pod, c *corev1.Container) int64 {
	whole := node.Capacity.Memory().Value()
	if node.SwapCapacity <= 0 || whole <= 0 || !podspec.SwapAllowed(pod, c, node.Standalone) {
		return 0
	}
	return int64(float64(askedMemory(c)) / float64(whole) * float64(node.SwapCapacity))
}
