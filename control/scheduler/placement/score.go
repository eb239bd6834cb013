package placement

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/admission"
)

const maxNodeScore = 100 // maximum score of one plugin

// scorePlugin computes one part of the scores. Names and weights are kube-scheduler's.
type scorePlugin struct {
	name   string
	weight int64
	scores func([]*nodeInfo) []int64
}

func (a *attempt) scorePlugins() []scorePlugin {
	return []scorePlugin{
		{"TaintToleration", 3, a.scoreTaintToleration}, {"NodeAffinity", 2, a.scoreNodeAffinity},
		{"PodTopologySpread", 2, a.scoreTopologySpread}, {"InterPodAffinity", 2, a.scoreInterPodAffinity},
		{"NodeResourcesFit", 1, a.scoreLeastAllocated},
		{"NodeResourcesBalancedAllocation", 1, a.scoreBalancedAllocation},
		{"ImageLocality", 1, a.scoreImageLocality},
	}
}

// score returns the weighted scores of the nodes.
func (a *attempt) score(nodes []*nodeInfo) []int64 {
	total := make([]int64, len(nodes))
	for _, plugin := range a.scorePlugins() {
		for i, score := range plugin.scores(nodes) {
			total[i] += plugin.weight * score
		}
	}
	return total
}

// Scores returns the weighted scores of the feasible nodes for the pod, by node and by the name of kube-scheduler's
// plugin. It explains the choice of Schedule. If the nominated node of the pod is feasible, no other node is
// considered.
func (c *Cluster) Scores(pod *corev1.Pod, with Related) map[string]map[string]int64 {
	a := c.newAttempt(pod, with)
	var feasible []*nodeInfo
	out := map[string]map[string]int64{}
	names := c.names
	if a.nominatedNode() != nil {
		names = []string{pod.Status.NominatedNodeName}
	}
	for _, name := range names {
		if node := c.nodes[name]; a.filterWithNominated(node, node.used) == nil {
			feasible = append(feasible, node)
			out[name] = map[string]int64{}
		}
	}
	for _, plugin := range a.scorePlugins() {
		for i, score := range plugin.scores(feasible) {
			out[feasible[i].Name][plugin.name] = plugin.weight * score
		}
	}
	return out
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

// Thresholds for the total size of present images. The maximum is per container.
const (
	minImageSize = 23 << 20
	maxImageSize = 1000 << 20
)

// scoreImageLocality prefers nodes that have the pod's images. The size is scaled by the fraction
// of nodes that have the image, so that not all pods follow the first one.
func (a *attempt) scoreImageLocality(nodes []*nodeInfo) []int64 {
	names := imagesOf(a.pod)
	return forEachNode(nodes, func(node *nodeInfo) int64 {
		sum := int64(0)
		for _, name := range names {
			spread := float64(a.cluster.images[name]) / float64(max(1, len(a.cluster.names)))
			sum += int64(float64(node.images[name]) * spread)
		}
		low, high := int64(minImageSize), int64(maxImageSize)*int64(max(1, len(names)))
		return maxNodeScore * (min(max(sum, low), high) - low) / (high - low)
	})
}

// imagesOf returns the names of the images of a pod's containers and image volumes.
func imagesOf(pod *corev1.Pod) (names []string) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			names = append(names, normalizedImageName(list[i].Image))
		}
	}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			names = append(names, normalizedImageName(image.Reference))
		}
	}
	return names
}

func normalizedImageName(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}

// scoreInterPodAffinity sums the weights of preferred terms: those of the pod that match existing
// pods, and those of existing pods that match the pod. A required affinity of an existing pod
// counts 1.
func (a *attempt) scoreInterPodAffinity(nodes []*nodeInfo) []int64 {
	sums := a.preferredTopologyWeights()
	if len(sums) == 0 || len(nodes) == 0 {
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
			raw[i] = int64(maxNodeScore * (float64(x-lowest) / float64(highest-lowest)))
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
