package placement

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// DisruptionBudget is the state of a PodDisruptionBudget.
type DisruptionBudget struct {
	Namespace          string
	Selector           labels.Selector
	DisruptionsAllowed int
	DisruptedPods      map[string]bool // names of pods whose disruption is already counted
}

// Preemption is the node to preempt on and the victims, or the reason why preemption is impossible.
type Preemption struct {
	Node    string        // empty if preemption is impossible
	Victims []*corev1.Pod // in descending order of importance
	Message string        // the choice, or why preemption is impossible

	// NotEligible reports that the pod must not preempt: by its policy, or because the victims of an earlier preemption
	// are still terminating.
	NotEligible bool
}

// Nominated returns the node that a pod is nominated for after the attempt to preempt. A pod that is not eligible keeps
// its nominated node.
func (p Preemption) Nominated(pod *corev1.Pod) string {
	if p.NotEligible {
		return pod.Status.NominatedNodeName
	}
	return p.Node
}

// candidate is a node with the victims of a preemption on it.
type candidate struct {
	node       *nodeInfo
	victims    []*podInfo // in descending order of importance
	violations int        // of disruption budgets
}

// Preempt selects the node on which the pod fits without pods of lower priority. It prefers few and
// unimportant victims and avoids violating disruption budgets. result is that of the failed
// Schedule.
func (c *Cluster) Preempt(pod *corev1.Pod, result Result, budgets []DisruptionBudget,
	with Related) Preemption {
	if p := pod.Spec.PreemptionPolicy; p != nil && *p == corev1.PreemptNever {
		return Preemption{Message: reasonNeverPreempts, NotEligible: true}
	}
	a := c.newAttempt(pod, with)
	if node, ok := c.nodes[pod.Status.NominatedNodeName]; ok && !result.Rejections[node.Name].Unresolvable &&
		a.hasTerminatingVictim(node) {
		return Preemption{Message: reasonVictimsTerminating, NotEligible: true}
	}
	var best *candidate
	var reasons [][]string
	for _, name := range c.names {
		if result.PreFilterReason != "" || result.Rejections[name].Unresolvable {
			reasons = append(reasons, []string{reasonNotHelpful})
			continue
		}
		found, rejections := a.selectVictims(c.nodes[name], budgets)
		if found == nil {
			reasons = append(reasons, rejections)
			continue
		}
		if best == nil || compareCandidates(found, best) < 0 {
			best = found
		}
	}
	if best == nil {
		return Preemption{Message: unavailableMessage(len(c.names), reasons)}
	}
	out := Preemption{Node: best.node.Name, Message: fmt.Sprintf(
		"found a potential placement for pod on node %s, preempting %d victims", best.node.Name, len(best.victims))}
	for _, v := range best.victims {
		out.Victims = append(out.Victims, v.pod)
	}
	return out
}

// hasTerminatingVictim reports whether a pod of lower priority on the node terminates because it was preempted.
func (a *attempt) hasTerminatingVictim(node *nodeInfo) bool {
	for _, other := range node.pods {
		if other.priority < a.priority && other.pod.DeletionTimestamp != nil && preempted(other.pod) {
			return true
		}
	}
	return false
}

func preempted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// selectVictims removes all pods of lower priority and adds back as many as possible, first those
// whose eviction violates a disruption budget, then by importance.
func (a *attempt) selectVictims(node *nodeInfo, budgets []DisruptionBudget) (*candidate, []string) {
	var lower []*podInfo
	for _, other := range node.pods {
		if other.priority < a.priority {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return nil, []string{reasonNoVictims}
	}
	slices.SortFunc(lower, compareImportance)
	simulated, used := a.clone(), node.used
	for _, other := range lower {
		simulated.simulate(node, other, -1)
		used.RemoveBound(other.pod)
	}
	if r := simulated.filterWithNominated(node, used); r != nil {
		return nil, r.Reasons
	}
	out := &candidate{node: node}
	reprieve := func(other *podInfo) bool {
		before := used
		simulated.simulate(node, other, 1)
		used.AddBound(other.pod)
		if simulated.filterWithNominated(node, used) == nil {
			return true
		}
		simulated.simulate(node, other, -1)
		used = before
		out.victims = append(out.victims, other)
		return false
	}
	violating, nonViolating := splitByBudget(lower, budgets)
	for _, other := range violating {
		if !reprieve(other) {
			out.violations++
		}
	}
	for _, other := range nonViolating {
		reprieve(other)
	}
	slices.SortFunc(out.victims, compareImportance)
	return out, nil
}

// splitByBudget separates the pods whose eviction violates a disruption budget. The allowed
// disruptions go to the most important pods first.
func splitByBudget(pods []*podInfo, budgets []DisruptionBudget) (violating, nonViolating []*podInfo) {
	remaining := make([]int, len(budgets))
	for i, b := range budgets {
		remaining[i] = b.DisruptionsAllowed
	}
	for _, p := range pods {
		violates := false
		for i, b := range budgets {
			if b.Namespace != p.pod.Namespace || b.DisruptedPods[p.pod.Name] ||
				!b.Selector.Matches(labels.Set(p.pod.Labels)) {
				continue
			}
			remaining[i]--
			violates = violates || remaining[i] < 0
		}
		if violates {
			violating = append(violating, p)
			continue
		}
		nonViolating = append(nonViolating, p)
	}
	return violating, nonViolating
}

// compareImportance orders by descending priority, then by start time.
func compareImportance(a, b *podInfo) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), startTime(a).Compare(startTime(b)), cmp.Compare(a.pod.UID,
		b.pod.UID))
}

func startTime(s *podInfo) time.Time {
	if t := s.pod.Status.StartTime; t != nil {
		return t.Time
	}
	return s.pod.CreationTimestamp.Time
}

// compareCandidates is negative if a is preferable to b. The criteria are kube-scheduler's.
func compareCandidates(a, b *candidate) int {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(a.highestPriority(), b.highestPriority()),
		cmp.Compare(a.prioritySum(), b.prioritySum()),
		cmp.Compare(len(a.victims), len(b.victims)),
		b.highestPriorityStartTime().Compare(a.highestPriorityStartTime()),
		cmp.Compare(a.node.Name, b.node.Name))
}

func (c *candidate) highestPriority() int32 {
	if len(c.victims) == 0 {
		return -1 << 31
	}
	return c.victims[0].priority
}

// prioritySum adds an offset to each priority, so that many pods of negative priority do not result
// in a low sum.
func (c *candidate) prioritySum() (sum int64) {
	for _, v := range c.victims {
		sum += int64(v.priority) + 1<<31
	}
	return sum
}

// highestPriorityStartTime returns the earliest start time of the victims with the highest
// priority.
func (c *candidate) highestPriorityStartTime() (at time.Time) {
	if len(c.victims) > 0 {
		at = startTime(c.victims[0])
	}
	return at
}
