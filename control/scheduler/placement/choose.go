package placement

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Result is the node for a pod or, per node, why it is none.
type Result struct {
	Node       string // empty: none fits
	Feasible   int    // nodes that would do
	Rejections map[string]Rejection
	NodeCount  int // all nodes

	// PreFilterReason: why no node was looked at at all.
	PreFilterReason string
}

// Schedule looks for the node that suits the pod best. A node on which room was
// made for the pod is taken if it will do. Volumes say on which nodes the pod's
// volumes can be, one selector for each that cannot be anywhere.
func (c *Cluster) Schedule(pod *corev1.Pod, volumes ...*corev1.NodeSelector) Result {
	q := c.newAttempt(pod, volumes)
	out := Result{NodeCount: len(c.names)}
	if at, ok := c.nodes[pod.Status.NominatedNodeName]; ok && at.exists && q.filterWithNominated(at, at.used) == nil {
		out.Node, out.Feasible = at.Name, 1
		return out
	}
	out.Rejections = map[string]Rejection{}
	var feasible []*nodeInfo
	for _, name := range c.names {
		at := c.nodes[name]
		if r := q.filterWithNominated(at, at.used); r != nil {
			out.Rejections[name] = *r
			continue
		}
		feasible = append(feasible, at)
	}
	out.Feasible = len(feasible)
	if len(feasible) > 0 {
		out.Node = q.selectNode(feasible).Name
	}
	return out
}

// Unschedulable is the choice for a pod that no node can have for now, whichever it is.
func (c *Cluster) Unschedulable(why string) Result {
	return Result{NodeCount: len(c.names), PreFilterReason: why}
}

// selectNode has the highest score; among equals chance decides, but for the same
// pod in the same way.
func (q *attempt) selectNode(feasible []*nodeInfo) *nodeInfo {
	if len(feasible) == 1 {
		return feasible[0]
	}
	scores := q.score(feasible)
	best, bestLot := 0, q.tieBreaker(feasible[0])
	for i := 1; i < len(feasible); i++ {
		lot := q.tieBreaker(feasible[i])
		if scores[i] > scores[best] || scores[i] == scores[best] && lot > bestLot {
			best, bestLot = i, lot
		}
	}
	return feasible[best]
}

func (q *attempt) tieBreaker(at *nodeInfo) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(q.pod.UID))
	_, _ = h.Write([]byte(at.Name))
	return h.Sum64()
}

// RejectedBy are those that refused, in order.
func (c Result) RejectedBy() []Filter {
	set := map[Filter]bool{}
	if c.PreFilterReason != "" {
		set[FilterVolumeBinding] = true
	}
	for _, r := range c.Rejections {
		set[r.Filter] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Message is what a user reads when no node fits: how many nodes there are, and
// each reason with the number of nodes that have it.
func (c Result) Message() string {
	if c.NodeCount == 0 {
		return "no nodes available to schedule pods"
	}
	if c.PreFilterReason != "" {
		return fmt.Sprintf("0/%d nodes are available: %s.", c.NodeCount, c.PreFilterReason)
	}
	reasons := make([][]string, 0, len(c.Rejections))
	for _, r := range c.Rejections {
		reasons = append(reasons, r.Reasons)
	}
	return unavailableMessage(c.NodeCount, reasons)
}

// unavailableMessage counts reasons over nodes.
func unavailableMessage(nodes int, reasons [][]string) string {
	count := map[string]int{}
	for _, list := range reasons {
		for _, reason := range list {
			count[reason]++
		}
	}
	lines := make([]string, 0, len(count))
	for reason, n := range count {
		lines = append(lines, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(lines)
	out := fmt.Sprintf("0/%d nodes are available:", nodes)
	if len(lines) > 0 {
		out += " " + strings.Join(lines, ", ") + "."
	}
	return out
}
