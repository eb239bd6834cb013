package placement

import (
	"math"

	corev1 "k8s.io/api/core/v1"
)

// scoreLeastAllocated prefers nodes with a low allocation of CPU and memory. Containers without requests count with a
// default.
func (a *attempt) scoreLeastAllocated(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(node *nodeInfo) int64 {
		sum, resources := int64(0), int64(0)
		for _, r := range []struct{ requested, allocatable int64 }{
			{node.nonZeroRequests.milliCPU + a.nonZeroRequests.milliCPU, node.Allocatable.Cpu().MilliValue()},
			{node.nonZeroRequests.memory + a.nonZeroRequests.memory, node.Allocatable.Memory().Value()},
		} {
			if r.allocatable == 0 {
				continue
			}
			resources++
			if r.requested <= r.allocatable {
				sum += (r.allocatable - r.requested) * maxNodeScore / r.allocatable
			}
		}
		if resources == 0 {
			return 0
		}
		return sum / resources
	})
}

// scoreBalancedAllocation prefers nodes on which the pod makes the allocations of CPU and memory more similar. A pod
// without requests changes none, and prefers no node.
func (a *attempt) scoreBalancedAllocation(nodes []*nodeInfo) []int64 {
	if a.requests == (cpuAndMemory{}) {
		return make([]int64, len(nodes))
	}
	return forEachNode(nodes, func(node *nodeInfo) int64 {
		with := node.requests
		with.add(a.requests, 1)
		change := balance(with, node.Allocatable) - balance(node.requests, node.Allocatable)
		return maxNodeScore/2 + (maxNodeScore/2+change)/2
	})
}

// balance returns maxNodeScore if the same fractions of CPU and memory are allocated, and less otherwise.
func balance(requested cpuAndMemory, allocatable corev1.ResourceList) int64 {
	cpu, memory := allocatable.Cpu().MilliValue(), allocatable.Memory().Value()
	if cpu == 0 || memory == 0 {
		return maxNodeScore
	}
	difference := min(1, float64(requested.milliCPU)/float64(cpu)) - min(1, float64(requested.memory)/float64(memory))
	return int64((1 - math.Abs(difference/2)) * maxNodeScore)
}
