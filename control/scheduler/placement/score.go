package placement

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/admission"
)

const maxNodeScore = 100 // the best score of one rule

// score weighs the nodes; weights are upstream's defaults.
func (q *attempt) score(nodes []*nodeInfo) []int64 {
	total := make([]int64, len(nodes))
	for _, rule := range []struct {
		weight int64
		scores func([]*nodeInfo) []int64
	}{
		{3, q.scoreTaintToleration}, {2, q.scoreNodeAffinity}, {2, q.scoreTopologySpread}, {2, q.scoreInterPodAffinity},
		{1, q.scoreLeastAllocated}, {1, q.scoreBalancedAllocation}, {1, q.scoreImageLocality},
	} {
		for i, score := range rule.scores(nodes) {
			total[i] += rule.weight * score
		}
	}
	return total
}

// normalize brings the highest to the full score; reversed, the lowest is best.
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

func forEachNode(nodes []*nodeInfo, of func(*nodeInfo) int64) []int64 {
	out := make([]int64, len(nodes))
	for i, at := range nodes {
		out[i] = of(at)
	}
	return out
}

// scoreTaintToleration: the fewer taints that would rather not have the pod, the better.
func (q *attempt) scoreTaintToleration(nodes []*nodeInfo) []int64 {
	return normalize(forEachNode(nodes, func(at *nodeInfo) (n int64) {
		for _, t := range at.Taints {
			if t.Effect == corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, q.pod.Spec.Tolerations) {
				n++
			}
		}
		return n
	}), true)
}

// scoreNodeAffinity adds up the weights of the preferences that a node meets.
func (q *attempt) scoreNodeAffinity(nodes []*nodeInfo) []int64 {
	a := q.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return make([]int64, len(nodes))
	}
	return normalize(forEachNode(nodes, func(at *nodeInfo) (sum int64) {
		for _, p := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			if admission.MatchesTerm(at.Node, p.Preference) {
				sum += int64(p.Weight)
			}
		}
		return sum
	}), false)
}

// allocatedFractions are the parts of CPU and memory that would be taken with the pod.
func (q *attempt) allocatedFractions(at *nodeInfo) (cpu, memory float64) {
	part := func(taken, all int64) float64 {
		if all <= 0 {
			return 1
		}
		return min(1, float64(taken)/float64(all))
	}
	return part(at.nonZeroRequests.milliCPU+q.nonZeroRequests.milliCPU, at.Allocatable.Cpu().MilliValue()),
		part(at.nonZeroRequests.memory+q.nonZeroRequests.memory, at.Allocatable.Memory().Value())
}

// scoreLeastAllocated prefers the node of which least is taken.
func (q *attempt) scoreLeastAllocated(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(at *nodeInfo) int64 {
		cpu, memory := q.allocatedFractions(at)
		return int64(maxNodeScore * ((1 - cpu) + (1 - memory)) / 2)
	})
}

// scoreBalancedAllocation prefers the node of which like parts of CPU and memory are taken.
func (q *attempt) scoreBalancedAllocation(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(at *nodeInfo) int64 {
		cpu, memory := q.allocatedFractions(at)
		return int64(maxNodeScore * (1 - math.Abs(cpu-memory)/2))
	})
}

// Sizes between which images that are there already count; per container.
const (
	minImageSize = 23 << 20
	maxImageSize = 1000 << 20
)

// scoreImageLocality prefers a node that has the pod's images, the more so the more nodes
// have them: else all pods would follow the first one.
func (q *attempt) scoreImageLocality(nodes []*nodeInfo) []int64 {
	return forEachNode(nodes, func(at *nodeInfo) int64 {
		var sum, containers int64
		for _, list := range [][]corev1.Container{q.pod.Spec.InitContainers, q.pod.Spec.Containers} {
			for i := range list {
				containers++
				name := normalizedImageName(list[i].Image)
				sum += at.images[name] * int64(q.cluster.images[name]) / int64(max(1, len(q.cluster.names)))
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

// scoreTopologySpread weighs the constraints that may be broken. A pod without any, made
// by a controller, is spread over nodes and zones among its siblings.
func (q *attempt) scoreTopologySpread(nodes []*nodeInfo) []int64 {
	soft := q.countSpread(corev1.ScheduleAnyway)
	if len(q.pod.Spec.TopologySpreadConstraints) == 0 {
		soft = q.defaultSpread()
	}
	if len(soft) == 0 {
		return make([]int64, len(nodes))
	}
	raw, lowest, highest := make([]float64, len(nodes)), math.Inf(1), 0.0
	for i, at := range nodes {
		for _, s := range soft {
			domain, ok := at.Labels[s.TopologyKey]
			if !ok && len(q.pod.Spec.TopologySpreadConstraints) > 0 {
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
func (q *attempt) defaultSpread() []spreadConstraint {
	owner := metav1.GetControllerOfNoCopy(q.pod)
	if owner == nil {
		return nil
	}
	out := make([]spreadConstraint, 0, 2)
	for key, skew := range map[string]int32{corev1.LabelHostname: 3, corev1.LabelTopologyZone: 5} {
		s := spreadConstraint{counts: map[string]int{}, podSelector: labels.Nothing()}
		s.TopologyKey, s.MaxSkew = key, skew
		for _, name := range q.cluster.names {
			at := q.cluster.nodes[name]
			domain, ok := at.Labels[key]
			if !ok {
				continue
			}
			s.counts[domain] += 0
			for _, other := range at.pods {
				theirs := metav1.GetControllerOfNoCopy(other.pod)
				if theirs != nil && theirs.UID == owner.UID && other.pod.DeletionTimestamp == nil {
					s.counts[domain]++
				}
			}
		}
		out = append(out, s)
	}
	return out
}

// scoreInterPodAffinity adds up the weights of preferred terms: the pod's about the pods in
// each place, and theirs about the pod. A required affinity of theirs counts 1.
func (q *attempt) scoreInterPodAffinity(nodes []*nodeInfo) []int64 {
	sums := q.preferredTopologyWeights()
	if len(sums) == 0 {
		return make([]int64, len(nodes))
	}
	raw := forEachNode(nodes, func(at *nodeInfo) (sum int64) {
		for p, weight := range sums {
			if value, ok := at.Labels[p.key]; ok && value == p.value {
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

func (q *attempt) preferredTopologyWeights() map[topologyPair]int64 {
	sums, names := map[topologyPair]int64{}, q.cluster.namespaces
	wants := len(q.terms.preferredAffinity)+len(q.terms.preferredAntiAffinity) > 0
	for _, name := range q.cluster.names {
		at := q.cluster.nodes[name]
		others := at.podsWithAffinity
		if wants {
			others = at.pods
		}
		add := func(list []affinityTerm, about *corev1.Pod, sign int64) {
			for _, t := range list {
				if value, ok := at.Labels[t.topologyKey]; ok && t.matches(about, names) {
					sums[topologyPair{t.topologyKey, value}] += sign * max(1, t.weight)
				}
			}
		}
		for _, other := range others {
			add(q.terms.preferredAffinity, other.pod, 1)
			add(q.terms.preferredAntiAffinity, other.pod, -1)
			add(other.terms.affinity, q.pod, 1)
			add(other.terms.preferredAffinity, q.pod, 1)
			add(other.terms.preferredAntiAffinity, q.pod, -1)
		}
	}
	return sums
}
