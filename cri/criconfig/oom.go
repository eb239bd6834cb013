package criconfig

import (
	"math/big"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// OOM scores. The kernel kills the process with the highest score first.
const (
	scoreGuaranteed = -997
	scoreBestEffort = 1000
	scoreMin        = 1000 + scoreGuaranteed // of a Burstable container
	scoreMax        = scoreBestEffort - 1

	nodeCriticalClass = "system-node-critical"
)

// OOMScoreAdjust returns the oom_score_adj of a container: the larger the fraction of the node's
// memory that it requests, the later it is killed. A sidecar is never killed before all main
// containers.
func OOMScoreAdjust(node Node, pod *corev1.Pod, c *corev1.Container) int64 {
	if pod.Spec.PriorityClassName == nodeCriticalClass {
		return scoreGuaranteed
	}
	switch podspec.QOSClass(pod) {
	case corev1.PodQOSGuaranteed:
		return scoreGuaranteed
	case corev1.PodQOSBestEffort:
		return scoreBestEffort
	}
	capacity := node.Capacity.Memory().Value()
	score := scoreOf(memoryRequest(pod, c), capacity)
	if sidecar(c) && len(pod.Spec.Containers) > 0 {
		least := memoryRequest(pod, &pod.Spec.Containers[0])
		for i := range pod.Spec.Containers {
			least = min(least, memoryRequest(pod, &pod.Spec.Containers[i]))
		}
		score = min(score, scoreOf(least, capacity))
	}
	return min(max(score, scoreMin), scoreMax)
}

// scoreOf is 1000 minus the requested per mille of the capacity.
func scoreOf(request, capacity int64) int64 {
	if capacity <= 0 {
		return scoreBestEffort
	}
	part := new(big.Int).Mul(big.NewInt(max(request, 0)), big.NewInt(1000))
	part.Div(part, big.NewInt(capacity))
	if !part.IsInt64() {
		return 0
	}
	return scoreBestEffort - part.Int64()
}

// memoryRequest returns the container's request plus its equal share of what the pod requests
// beyond its containers.
func memoryRequest(pod *corev1.Pod, c *corev1.Container) int64 {
	own := memoryOf(c)
	if pod.Spec.Resources == nil {
		return own
	}
	whole, ok := pod.Spec.Resources.Requests[corev1.ResourceMemory]
	if !ok {
		return own
	}
	rest, n := whole.Value(), int64(len(pod.Spec.Containers))
	for i := range pod.Spec.Containers {
		rest -= memoryOf(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if sidecar(&pod.Spec.InitContainers[i]) {
			rest -= memoryOf(&pod.Spec.InitContainers[i])
			n++
		}
	}
	if rest <= 0 || n == 0 {
		return own
	}
	return own + rest/n
}

func memoryOf(c *corev1.Container) int64 {
	if q, ok := c.Resources.Requests[corev1.ResourceMemory]; ok {
		return q.Value()
	}
	return c.Resources.Limits.Memory().Value()
}

func sidecar(c *corev1.Container) bool { return podspec.IsSidecar(c) }
