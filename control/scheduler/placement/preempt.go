package placement

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Budget is how many more pods of a group may go.
type Budget struct {
	Namespace string
	Pods      labels.Selector
	Allowed   int
	Gone      map[string]bool // names of pods whose going is counted already
}

// Preemption is the node on which room is to be made, and by whose end; or
// why there is none.
type Preemption struct {
	Node    string        // empty: none
	Victims []*corev1.Pod // the least important last
	Message string        // without a node: why, for the user

	// RoomIsComing: an earlier preemption's victims are still ending.
	RoomIsComing bool
}

// candidate is one node with the pods that would have to go.
type candidate struct {
	at         *node
	victims    []*subject // the most important first
	violations int        // of disruption budgets
}

// Preempt looks for a node on which the pod fits once pods of lower priority are
// gone: as few and as unimportant ones as possible, and no disruption budget
// broken if that can be. The choice is the one that found no node.
func (c *Cluster) Preempt(pod *corev1.Pod, choice Choice, budgets []Budget, volumes ...*corev1.NodeSelector) Preemption {
	if p := pod.Spec.PreemptionPolicy; p != nil && *p == corev1.PreemptNever {
		return Preemption{Message: reasonNeverPreempts}
	}
	q := c.ask(pod, volumes)
	if at, ok := c.nodes[pod.Status.NominatedNodeName]; ok && !choice.Refusals[at.Name].Final && q.roomIsComing(at) {
		return Preemption{Message: reasonRoomIsComing, RoomIsComing: true}
	}
	var best *candidate
	var reasons [][]string
	for _, name := range c.names {
		if choice.Before != "" || choice.Refusals[name].Final {
			reasons = append(reasons, []string{reasonNotHelpful})
			continue
		}
		found, why := q.victims(c.nodes[name], budgets)
		if found == nil {
			reasons = append(reasons, why)
			continue
		}
		if best == nil || better(found, best) < 0 {
			best = found
		}
	}
	if best == nil {
		return Preemption{Message: available(len(c.names), reasons)}
	}
	out := Preemption{Node: best.at.Name}
	for _, v := range best.victims {
		out.Victims = append(out.Victims, v.pod)
	}
	return out
}

// roomIsComing: a pod that was told to go is still there.
func (q *question) roomIsComing(at *node) bool {
	for _, other := range at.pods {
		if other.pod.DeletionTimestamp != nil && other.priority < q.priority {
			return true
		}
	}
	return false
}

// victims takes away every less important pod of the node and gives back as many
// as possible, the important and those of tight budgets first.
func (q *question) victims(at *node, budgets []Budget) (*candidate, []string) {
	var lower []*subject
	for _, other := range at.pods {
		if other.priority < q.priority {
			lower = append(lower, other)
		}
	}
	if len(lower) == 0 {
		return nil, []string{reasonNoVictims}
	}
	slices.SortFunc(lower, moreImportant)
	with, used := q.supposing(), at.used
	for _, other := range lower {
		with.suppose(at, other, -1)
		used.RemoveBound(other.pod)
	}
	if r := with.refusalBeside(at, used); r != nil {
		return nil, r.Reasons
	}
	out := &candidate{at: at}
	reprieve := func(other *subject) bool {
		before := used
		with.suppose(at, other, 1)
		used.AddBound(other.pod)
		if with.refusalBeside(at, used) == nil {
			return true
		}
		with.suppose(at, other, -1)
		used = before
		out.victims = append(out.victims, other)
		return false
	}
	tight, loose := byBudget(lower, budgets)
	for _, other := range tight {
		if !reprieve(other) {
			out.violations++
		}
	}
	for _, other := range loose {
		reprieve(other)
	}
	slices.SortFunc(out.victims, moreImportant)
	return out, nil
}

// byBudget parts the pods whose going would break a budget from the others; the
// budgets are spent on the most important pods first.
func byBudget(pods []*subject, budgets []Budget) (tight, loose []*subject) {
	left := make([]int, len(budgets))
	for i, b := range budgets {
		left[i] = b.Allowed
	}
	for _, p := range pods {
		breaks := false
		for i, b := range budgets {
			if b.Namespace != p.pod.Namespace || b.Gone[p.pod.Name] || !b.Pods.Matches(labels.Set(p.pod.Labels)) {
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

// moreImportant orders by priority, then by how long the pods have run.
func moreImportant(a, b *subject) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), started(a).Compare(started(b)), cmp.Compare(a.pod.UID, b.pod.UID))
}

func started(s *subject) time.Time {
	if t := s.pod.Status.StartTime; t != nil {
		return t.Time
	}
	return s.pod.CreationTimestamp.Time
}

// better compares two candidates; negative: the first is the better one.
func better(a, b *candidate) int {
	return cmp.Or(
		cmp.Compare(a.violations, b.violations),
		cmp.Compare(a.highest(), b.highest()),
		cmp.Compare(a.sum(), b.sum()),
		cmp.Compare(len(a.victims), len(b.victims)),
		b.youngest().Compare(a.youngest()),
		cmp.Compare(a.at.Name, b.at.Name))
}

func (c *candidate) highest() int32 {
	if len(c.victims) == 0 {
		return -1 << 31
	}
	return c.victims[0].priority
}

// sum is shifted so that many pods of negative priority do not look cheap.
func (c *candidate) sum() (sum int64) {
	for _, v := range c.victims {
		sum += int64(v.priority) + 1<<31
	}
	return sum
}

// youngest is when the most important victim that ran longest was started.
func (c *candidate) youngest() (at time.Time) {
	if len(c.victims) > 0 {
		at = started(c.victims[0])
	}
	return at
}

// Fits reports whether the node would have the pod as things are; used by tests
// and by those who want to know whether waiting still makes sense.
func (c *Cluster) Fits(pod *corev1.Pod, name string) bool {
	at, ok := c.nodes[name]
	return ok && at.seen && c.ask(pod, nil).refusalBeside(at, at.used) == nil
}
