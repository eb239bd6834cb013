package placement

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/admission"
)

const maxNodeScore = 100 // maximum score of one plugin

// score returns the weighted scores of the nodes. The weights are kube-scheduler's defaults.
func (a *attempt) score(nodes []*nodeInfo) []int64 {
	total := make([]int64, len(nodes))
	for _, plugin := range []struct {
		weight int64
		scores func([]*nodeInfo) []int64
	}{
		{3, a.scoreTaintToleration}, {2, a.scoreNodeAffinity}, {2, a.scoreTopologySpread}, {2, a.scoreInterPodAffinity},
		{1, a.scoreLeastAllocated}, {1, a.scoreBalancedAllocation}, {1, a.scoreImageLocality},
	} {
		for i, score := range plugin.scores(nodes) {
			total[i] += plugin.weight * score
		}
	}
	return total
}

// normalize scales scores to the range 0 to maxNodeScore. If reversed, the lowest raw score is the
// best.
func normalize(raw []int64, reversed bool) []int64 {
	var highest int64
	for _, x := range raw {
		highest = max(highest, x)
	}
	for i, x := range raw {
		score := int64(0)
		if highest > 0 {
			score = maxNodeScore * x / highest
		}
		if reversed {
			score = maxNodeScore - score
		}
		raw[i] = score
	}
	return raw
}

func forEachNode(nodes []*nodeInfo, score func(*nodeInfo) int64) []int64 {
	out := make([]int64, len(nodes))
	for i, node := range nodes {
		out[i] = score(node)
	}
	return out
}

// scoreTaintToleration prefers nodes with few untolerated PreferNoSchedule taints.
func (a *attempt) scoreTaintToleration(nodes []*nodeInfo) []int64 {
	return normalize(forEachNode(nodes, func(node *nodeInfo) (n int64) {
		for _, t := range node.Taints {
			if t.Effect == corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, a.pod.Spec.Tolerations) {
				n++
			}
		}
		return n
	}), true)
}

// scoreNodeAffinity sums the weights of the matching preferences.
func (a *attempt) scoreNodeAffinity(nodes []*nodeInfo) []int64 {
	affinity := a.pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil {
		return make([]int64, len(nodes))
	}
	return normalize(forEachNode(nodes, func(node *nodeInfo) (sum int64) {
		for _, p := range affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			if admission.MatchesTerm(node.Node, p.Preference) {
				sum += int64(p.Weight)
			}
		}
		return sum
	}), false)
}

// allocatedFractions returns the fractions of CPU and memory allocated on the node with the pod.
func (a *attempt) allocatedFractions(node *nodeInfo) (cpu, memory float64) {
	fraction := func(allocated, allocatable int64) float64 {
		if allocatable <= 0 {
			return 1
		}
		return min(1, float64(allocated)/float64(allocatable))
	}
	return fraction(node.nonZeroRequests.milliCPU+a.nonZeroRequests.milliCPU, node.Allocatable.Cpu().MilliValue()),
		fraction(node.nonZeroRequests.memory+a.nonZeroRequests.memory, node.Allocatable.Memory().Value())
}

// scoreLeastAllocated prefers nodes with a low allocation.
func (a *attempt) scoreLeastAllocated(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(node *nodeInfo) int64 {
		cpu, memory := a.allocatedFractions(node)
		return int64(maxNodeScore * ((1 - cpu) + (1 - memory)) / 2)
	})
}

// scoreBalancedAllocation prefers nodes with similar allocation of CPU and memory.
func (a *attempt) scoreBalancedAllocation(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(node *nodeInfo) int64 {
		cpu, memory := a.allocatedFractions(node)
		return int64(maxNodeScore * (1 - math.Abs(cpu-memory)/2))
	})
}

// Thresholds for the total size of present images. The maximum is per container.
const (
	minImageSize = 23 << 20
	maxImageSize = 1000 << 20
)

// scoreImageLocality prefers nodes that have the pod's images. The size is scaled by the fraction
// of nodes that have the image, so that not all pods follow the first one.
func (a *attempt) scoreImageLocality(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(node *nodeInfo) int64 {
		var sum, containers int64
		for _, list := range [][]corev1.Container{a.pod.Spec.InitContainers, a.pod.Spec.Containers} {
			for i := range list {
				containers++
				name := normalizedImageName(list[i].Image)
				sum += node.images[name] * int64(a.cluster.images[name]) / int64(max(1, len(a.cluster.names)))
			}
		}
		low, high := int64(minImageSize), maxImageSize*max(1, containers)
		return maxNodeScore * (min(max(sum, low), high) - low) / (high - low)
	})
}

func normalizedImageName(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}

// scoreTopologySpread scores the ScheduleAnyway constraints. A pod without constraints that has a
// controller is spread over nodes and zones by default.
func (a *attempt) scoreTopologySpread(nodes []*nodeInfo) []int64 {
	constraints := a.countSpread(corev1.ScheduleAnyway)
	if len(a.pod.Spec.TopologySpreadConstraints) == 0 {
		constraints = a.defaultSpread()
	}
	if len(constraints) == 0 {
		return make([]int64, len(nodes))
	}
	raw, lowest, highest := make([]float64, len(nodes)), math.Inf(1), 0.0
	for i, node := range nodes {
		for _, s := range constraints {
			domain, ok := node.Labels[s.TopologyKey]
			if !ok && len(a.pod.Spec.TopologySpreadConstraints) > 0 {
				raw[i] = -1
				break
			}
			raw[i] += float64(s.counts[domain])*math.Log(float64(len(s.counts)+2)) + float64(s.MaxSkew-1)
		}
		if raw[i] >= 0 {
			lowest, highest = min(lowest, raw[i]), max(highest, raw[i])
		}
	}
	out := make([]int64, len(nodes))
	for i, x := range raw {
		switch {
		case x < 0:
		case highest == 0:
			out[i] = maxNodeScore
		default:
			out[i] = int64(maxNodeScore * (highest + lowest - x) / highest)
		}
	}
	return out
}

// defaultSpread counts the pods of the same controller by node and by zone.
func (a *attempt) defaultSpread() []spreadConstraint {
	owner := metav1.GetControllerOfNoCopy(a.pod)
	if owner == nil {
		return nil
	}
	out := make([]spreadConstraint, 0, 2)
	for key, skew := range map[string]int32{corev1.LabelHostname: 3, corev1.LabelTopologyZone: 5} {
		s := spreadConstraint{counts: map[string]int{}, podSelector: labels.Nothing()}
		s.TopologyKey, s.MaxSkew = key, skew
		for _, name := range a.cluster.names {
			node := a.cluster.nodes[name]
			domain, ok := node.Labels[key]
			if !ok {
				continue
			}
			s.counts[domain] += 0
			for _, other := range node.pods {
				otherOwner := metav1.GetControllerOfNoCopy(other.pod)
				if otherOwner != nil && otherOwner.UID == owner.UID && other.pod.DeletionTimestamp == nil {
					s.counts[domain]++
				}
			}
		}
		out = append(out, s)
	}
	return out
}

// scoreInterPodAffinity sums the weights of preferred terms: those of the pod that match existing
// pods, and those of existing pods that match the pod. A required affinity of an existing pod
// counts 1.
func (a *attempt) scoreInterPodAffinity(nodes []*nodeInfo) []int64 {
	sums := a.preferredTopologyWeights()
	if len(sums) == 0 {
		return make([]int64, len(nodes))
	}
	raw := forEachNode(nodes, func(node *nodeInfo) (sum int64) {
		for p, weight := range sums {
			if value, ok := node.Labels[p.key]; ok && value == p.value {
				sum += weight
			}
		}
		return sum
	})
	lowest, highest := raw[0], raw[0]
	for _, x := range raw {
		lowest, highest = min(lowest, x), max(highest, x)
	}
	for i, x := range raw {
		raw[i] = 0
		if highest > lowest {
			raw[i] = maxNodeScore * (x - lowest) / (highest - lowest)
		}
	}
	return raw
}

func (a *attempt) preferredTopologyWeights() map[topologyPair]int64 {
	sums, names := map[topologyPair]int64{}, a.cluster.namespaces
	hasTerms := len(a.terms.preferredAffinity)+len(a.terms.preferredAntiAffinity) > 0
	for _, name := range a.cluster.names {
		node := a.cluster.nodes[name]
		others := node.podsWithAffinity
		if hasTerms {
			others = node.pods
		}
		add := func(list []affinityTerm, pod *corev1.Pod, sign int64) {
			for _, t := range list {
				if value, ok := node.Labels[t.topologyKey]; ok && t.matches(pod, names) {
					sums[topologyPair{t.topologyKey, value}] += sign * max(1, t.weight)
				}
			}
		}
		for _, other := range others {
			add(a.terms.preferredAffinity, other.pod, 1)
			add(a.terms.preferredAntiAffinity, other.pod, -1)
			add(other.terms.affinity, a.pod, 1)
			add(other.terms.preferredAffinity, a.pod, 1)
			add(other.terms.preferredAntiAffinity, a.pod, -1)
		}
	}
	return sums
}
