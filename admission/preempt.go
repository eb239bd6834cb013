package admission

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// PodsToPreempt selects the pods to evict so that a critical pod fits the node. The candidates in
// are part of used. It returns the smallest set by upstream's distance, BestEffort before Burstable
// before Guaranteed. Critical pods are included only if they have a lower priority. The result is
// empty if the pod is not critical, fits already, or would not fit without all candidates.
func PodsToPreempt(node Node, used Used, pod *corev1.Pod, in []*corev1.Pod) []*corev1.Pod {
	refusals := Check(node, used, pod)
	other := func(r Rejection) bool { return r.Resource == "" }
	if len(refusals) == 0 || slices.ContainsFunc(refusals, other) || !podspec.IsCritical(pod, node.Standalone) {
		return nil
	}
	c := preemption{
		node:     node,
		pod:      pod,
		used:     used.clone(),
		requests: make(map[*corev1.Pod]corev1.ResourceList, len(in)),
	}
	var tiers [3][]*corev1.Pod
	for _, p := range in {
		if preemptable(node, pod, p) {
			tier := qosRank(p)
			tiers[tier] = append(tiers[tier], p)
			c.used.remove(p)
			c.requests[p] = podspec.Requests(p)
		}
	}
	if len(c.shortages()) > 0 {
		return nil
	}
	// Each class provides what is still missing after the eviction of all lower classes.
	var out []*corev1.Pod
	for tier := len(tiers) - 1; tier >= 0; tier-- {
		for _, p := range tiers[tier] {
			c.used.add(p)
		}
		out = append(out, c.pickFrom(tiers[tier])...)
	}
	return c.reprieve(out)
}

// preemptable reports whether a pod may be evicted for a critical one: it is not critical itself,
// or both have a priority and its own is lower, as upstream. A static pod without a priority is
// critical and never evicted.
func preemptable(node Node, critical, pod *corev1.Pod) bool {
	if !podspec.IsCritical(pod, node.Standalone) {
		return true
	}
	return podspec.HasPriority(pod) && podspec.HasPriority(critical) &&
		podspec.Priority(pod) < podspec.Priority(critical)
}

// qosRank is the position of the QoS class of a pod in the order of preemption.
func qosRank(pod *corev1.Pod) int {
	return slices.Index(
		[]corev1.PodQOSClass{corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed},
		podspec.QOSClass(pod),
	)
}

// preemption is the state of one selection. used are the resources in use without the selected
// pods.
type preemption struct {
	node     Node
	pod      *corev1.Pod
	used     Used
	requests map[*corev1.Pod]corev1.ResourceList // effective requests of the candidates
}

func (c *preemption) shortages() []Rejection { return resources(c.node, c.used, c.pod) }

// pickFrom selects pods of one QoS class, which are part of used, always the one closest to the
// missing resources, until nothing is missing.
func (c *preemption) pickFrom(pods []*corev1.Pod) (out []*corev1.Pod) {
	left := slices.Clone(pods)
	for {
		lacking := c.shortages()
		if len(lacking) == 0 || len(left) == 0 {
			return out
		}
		best, bestDistance := 0, c.distance(lacking, left[0])
		for i := 1; i < len(left); i++ {
			distance := c.distance(lacking, left[i])
			if cmp.Or(cmp.Compare(distance, bestDistance), c.compare(lacking, left[i], left[best])) < 0 {
				best, bestDistance = i, distance
			}
		}
		out = append(out, left[best])
		c.used.remove(left[best])
		left = slices.Delete(left, best, best+1)
	}
}

// reprieve removes pods from the selection that are not needed, starting with the highest-ranked.
func (c *preemption) reprieve(chosen []*corev1.Pod) []*corev1.Pod {
	slices.SortFunc(
		chosen,
		func(a, b *corev1.Pod) int { return cmp.Or(cmp.Compare(qosRank(b), qosRank(a)), c.compare(nil, b, a)) },
	)
	out := chosen[:0]
	for _, p := range chosen {
		c.used.add(p)
		if len(c.shortages()) > 0 {
			c.used.remove(p)
			out = append(out, p)
		}
	}
	slices.Reverse(out)
	return out
}

// distance is the sum of the squared fractions of the missing resources that the pod does not
// provide.
func (c *preemption) distance(lacking []Rejection, pod *corev1.Pod) (sum float64) {
	for _, r := range lacking {
		provided := int64(1) // a pod
		if r.Resource != corev1.ResourcePods {
			provided = int64Value(r.Resource, c.requests[pod][r.Resource])
		}
		needs := float64(r.Requested) + float64(r.Used) - float64(r.Capacity)
		if part := 1 - float64(provided)/needs; needs > 0 && part > 0 {
			sum += part * part
		}
	}
	return sum
}

// compare orders candidates by priority, then by requests: of the missing resources, then of memory
// and CPU; then by name, so that the result is deterministic.
func (c *preemption) compare(lacking []Rejection, a, b *corev1.Pod) int {
	if by := cmp.Compare(podspec.Priority(a), podspec.Priority(b)); by != 0 {
		return by
	}
	less := func(name corev1.ResourceName) int {
		q := c.requests[a][name]
		return q.Cmp(c.requests[b][name])
	}
	for _, r := range lacking {
		if by := less(r.Resource); by != 0 {
			return by
		}
	}
	return cmp.Or(
		less(corev1.ResourceMemory), less(corev1.ResourceCPU),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID),
	)
}
