package placement

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// DisruptionBudget is how many more pods of a group may go.
type DisruptionBudget struct {
	Namespace          string
	Selector           labels.Selector
	DisruptionsAllowed int
	DisruptedPods      map[string]bool // names of pods whose going is counted already
}

// Preemption is the node on which room is to be made, and by whose end; or
// why there is none.
type Preemption struct {
	Node    string        // empty: none
	Victims []*corev1.Pod // the least important last
	Message string        // without a node: why, for the user

	// VictimsTerminating: an earlier preemption's victims are still ending.
	VictimsTerminating bool
}

// candidate is one node with the pods that would have to go.
type candidate struct {
	node       *nodeInfo
	victims    []*podInfo // the most important first
	violations int        // of disruption budgets
}

// Preempt looks for a node on which the pod fits once pods of lower priority are
// gone: as few and as unimportant ones as possible, and no disruption budget
// broken if that can be. The choice is the one that found no node.
func (c *Cluster) Preempt(pod *corev1.Pod, choice Result, budgets []DisruptionBudget, volumes ...*corev1.NodeSelector) Preemption {
	if p := pod.Spec.PreemptionPolicy; p != nil && *p == corev1.PreemptNever {
		return Preemption{Message: reasonNeverPreempts}
	}
	q := c.newAttempt(pod, volumes)
	if at, ok := c.nodes[pod.Status.NominatedNodeName]; ok && !choice.Rejections[at.Name].Unresolvable && q.hasTerminatingVictim(at) {
		return Preemption{Message: reasonVictimsTerminating, VictimsTerminating: true}
	}
	var best *candidate
	var reasons [][]string
	for _, name := range c.names {
		if choice.PreFilterReason != "" || choice.Rejections[name].Unresolvable {
			reasons = append(reasons, []string{reasonNotHelpful})
			continue
		}
		found, why := q.selectVictims(c.nodes[name], budgets)
		if found == nil {
			reasons = append(reasons, why)
			continue
		}
		if best == nil || compareCandidates(found, best) < 0 {
			best = found
		}
	}
	if best == nil {
		return Preemption{Message: unavailableMessage(len(c.names), reasons)}
	}
	out := Preemption{Node: best.node.Name}
	for _, v := range best.victims {
		out.Victims = append(out.Victims, v.pod)
	}
	return out
}

// hasTerminatingVictim: a pod that was told to go is still there.
func (q *attempt) hasTerminatingVictim(at *nodeInfo) bool {
	for _, other := range at.pods {
		if other.pod.DeletionTimestamp != nil && other.priority < q.priority {
			return true
		}
	}
	return false
}

// selectVictims takes away every less important pod of the node and gives back as many
// as possible, the important and those of tight budgets first.
func (q *attempt) selectVictims(at *nodeInfo, budgets []DisruptionBudget) (*candidate, []string) {
	var lower []*podInfo
	for _, other := range at.pods {
		if other.priority < q.priority {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return nil, []string{reasonNoVictims}
	}
	slices.SortFunc(lower, compareImportance)
	with, used := q.clone(), at.used
	for _, other := range lower {
		with.simulate(at, other, -1)
		used.RemoveBound(other.pod)
	}
	if r := with.filterWithNominated(at, used); r != nil {
		return nil, r.Reasons
	}
	out := &candidate{node: at}
	reprieve := func(other *podInfo) bool {
		before := used
		with.simulate(at, other, 1)
		used.AddBound(other.pod)
		if with.filterWithNominated(at, used) == nil {
			return true
		}
		with.simulate(at, other, -1)
		used = before
		out.victims = append(out.victims, other)
		return false
	}
	tight, loose := splitByBudget(lower, budgets)
	for _, other := range tight {
		if !reprieve(other) {
			out.violations++
		}
	}
	for _, other := range loose {
		reprieve(other)
	}
	slices.SortFunc(out.victims, compareImportance)
	return out, nil
}

// splitByBudget parts the pods whose going would break a budget from the others; the
// budgets are spent on the most important pods first.
func splitByBudget(pods []*podInfo, budgets []DisruptionBudget) (tight, loose []*podInfo) {
	left := make([]int, len(budgets))
	for i, b := range budgets {
		left[i] = b.DisruptionsAllowed
	}
	for _, p := range pods {
		breaks := false
		for i, b := range budgets {
			if b.Namespace != p.pod.Namespace || b.DisruptedPods[p.pod.Name] || !b.Selector.Matches(labels.Set(p.pod.Labels)) {
				continue
			}
			left[i]--
			breaks = breaks || left[i] < 0
		}
		if breaks {
			tight = append(tight, p)
			continue
		}
		loose = append(loose, p)
	}
	return tight, loose
}

// compareImportance orders by priority, then by how long the pods have run.
func compareImportance(a, b *podInfo) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), startTime(a).Compare(startTime(b)), cmp.Compare(a.pod.UID, b.pod.UID))
}

func startTime(s *podInfo) time.Time {
	if t := s.pod.Status.StartTime; t != nil {
		return t.Time
	}
	return s.pod.CreationTimestamp.Time
}

// compareCandidates compares two candidates; negative: the first is the better one.
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

// prioritySum is shifted so that many pods of negative priority do not look cheap.
func (c *candidate) prioritySum() (sum int64) {
	for _, v := range c.victims {
		sum += int64(v.priority) + 1<<31
	}
	return sum
}

// highestPriorityStartTime is when the most important victim that ran longest was started.
func (c *candidate) highestPriorityStartTime() (at time.Time) {
	if len(c.victims) > 0 {
		at = startTime(c.victims[0])
	}
	return at
}

// Fits reports whether the node would have the pod as things are; used by tests
// and by those who want to know whether waiting still makes sense.
func (c *Cluster) Fits(pod *corev1.Pod, name string) bool {
	at, ok := c.nodes[name]
	return ok && at.exists && c.newAttempt(pod, nil).filterWithNominated(at, at.used) == nil
}
