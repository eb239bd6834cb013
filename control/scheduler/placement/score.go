package placement

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"berth/admission"
)

const full = 100 // the best score of one rule

// scores weighs the nodes; weights are upstream's defaults.
func (q *question) scores(nodes []*node) []int64 {
	total := make([]int64, len(nodes))
	for _, rule := range []struct {
		weight int64
		scores func([]*node) []int64
	}{
		{3, q.byTaints}, {2, q.byNodeAffinity}, {2, q.bySpread}, {2, q.byCompany},
		{1, q.byRoom}, {1, q.byBalance}, {1, q.byImages},
	} {
		for i, score := range rule.scores(nodes) {
			total[i] += rule.weight * score
		}
	}
	return total
}

// scaled brings the highest to the full score; reversed, the lowest is best.
func scaled(raw []int64, reversed bool) []int64 {
	var highest int64
	for _, x := range raw {
		highest = max(highest, x)
	}
	for i, x := range raw {
		score := int64(0)
		if highest > 0 {
			score = full * x / highest
		}
		if reversed {
			score = full - score
		}
		raw[i] = score
	}
	return raw
}

func each(nodes []*node, of func(*node) int64) []int64 {
	out := make([]int64, len(nodes))
	for i, at := range nodes {
		out[i] = of(at)
	}
	return out
}

// byTaints: the fewer taints that would rather not have the pod, the better.
func (q *question) byTaints(nodes []*node) []int64 {
	return scaled(each(nodes, func(at *node) (n int64) {
		for _, t := range at.Taints {
			if t.Effect == corev1.TaintEffectPreferNoSchedule && !admission.Tolerated(t, q.pod.Spec.Tolerations) {
				n++
			}
		}
		return n
	}), true)
}

// byNodeAffinity adds up the weights of the preferences that a node meets.
func (q *question) byNodeAffinity(nodes []*node) []int64 {
	a := q.pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil {
		return make([]int64, len(nodes))
	}
	return scaled(each(nodes, func(at *node) (sum int64) {
		for _, p := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			if admission.MatchesTerm(at.Node, p.Preference) {
				sum += int64(p.Weight)
			}
		}
		return sum
	}), false)
}

// shares are the parts of CPU and memory that would be taken with the pod.
func (q *question) shares(at *node) (cpu, memory float64) {
	part := func(taken, all int64) float64 {
		if all <= 0 {
			return 1
		}
		return min(1, float64(taken)/float64(all))
	}
	return part(at.wished.milliCPU+q.wished.milliCPU, at.Allocatable.Cpu().MilliValue()),
		part(at.wished.memory+q.wished.memory, at.Allocatable.Memory().Value())
}

// byRoom prefers the node of which least is taken.
func (q *question) byRoom(nodes []*node) []int64 {
	return each(nodes, func(at *node) int64 {
		cpu, memory := q.shares(at)
		return int64(full * ((1 - cpu) + (1 - memory)) / 2)
	})
}

// byBalance prefers the node of which like parts of CPU and memory are taken.
func (q *question) byBalance(nodes []*node) []int64 {
	return each(nodes, func(at *node) int64 {
		cpu, memory := q.shares(at)
		return int64(full * (1 - math.Abs(cpu-memory)/2))
	})
}

// Sizes between which images that are there already count; per container.
const (
	smallImages = 23 << 20
	largeImages = 1000 << 20
)

// byImages prefers a node that has the pod's images, the more so the more nodes
// have them: else all pods would follow the first one.
func (q *question) byImages(nodes []*node) []int64 {
	return each(nodes, func(at *node) int64 {
		var sum, containers int64
		for _, list := range [][]corev1.Container{q.pod.Spec.InitContainers, q.pod.Spec.Containers} {
			for i := range list {
				containers++
				name := tagged(list[i].Image)
				sum += at.images[name] * int64(q.cluster.images[name]) / int64(max(1, len(q.cluster.names)))
			}
		}
		low, high := int64(smallImages), largeImages*max(1, containers)
		return full * (min(max(sum, low), high) - low) / (high - low)
	})
}

func tagged(image string) string {
	if strings.LastIndex(image, ":") <= strings.LastIndex(image, "/") {
		return image + ":latest"
	}
	return image
}

// bySpread weighs the constraints that may be broken. A pod without any, made
// by a controller, is spread over nodes and zones among its siblings.
func (q *question) bySpread(nodes []*node) []int64 {
	soft := q.countSpread(corev1.ScheduleAnyway)
	if len(q.pod.Spec.TopologySpreadConstraints) == 0 {
		soft = q.siblings()
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
			out[i] = full
		default:
			out[i] = int64(full * (highest + lowest - x) / highest)
		}
	}
	return out
}

// siblings counts the pods of the same controller by node and by zone.
func (q *question) siblings() []spread {
	owner := metav1.GetControllerOfNoCopy(q.pod)
	if owner == nil {
		return nil
	}
	out := make([]spread, 0, 2)
	for key, skew := range map[string]int32{corev1.LabelHostname: 3, corev1.LabelTopologyZone: 5} {
		s := spread{counts: map[string]int{}, pods: labels.Nothing()}
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

// byCompany adds up the weights of preferred terms: the pod's about the pods in
// each place, and theirs about the pod. A required affinity of theirs counts 1.
func (q *question) byCompany(nodes []*node) []int64 {
	sums := q.preferredPlaces()
	if len(sums) == 0 {
		return make([]int64, len(nodes))
	}
	raw := each(nodes, func(at *node) (sum int64) {
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
			raw[i] = full * (x - lowest) / (highest - lowest)
		}
	}
	return raw
}

func (q *question) preferredPlaces() map[place]int64 {
	sums, names := map[place]int64{}, q.cluster.namespaces
	wants := len(q.terms.preferNear)+len(q.terms.preferApart) > 0
	for _, name := range q.cluster.names {
		at := q.cluster.nodes[name]
		others := at.affine
		if wants {
			others = at.pods
		}
		add := func(list []term, about *corev1.Pod, sign int64) {
			for _, t := range list {
				if value, ok := at.Labels[t.topologyKey]; ok && t.matches(about, names) {
					sums[place{t.topologyKey, value}] += sign * max(1, t.weight)
				}
			}
		}
		for _, other := range others {
			add(q.terms.preferNear, other.pod, 1)
			add(q.terms.preferApart, other.pod, -1)
			add(other.terms.near, q.pod, 1)
			add(other.terms.preferNear, q.pod, 1)
			add(other.terms.preferApart, q.pod, -1)
		}
	}
	return sums
}
