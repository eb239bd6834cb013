package placement

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Choice is the node for a pod or, per node, why it is none.
type Choice struct {
	Node     string // empty: none fits
	Feasible int    // nodes that would do
	Refusals map[string]Refusal
	Nodes    int // all nodes

	// Before: why no node was looked at at all.
	Before string
}

// Choose looks for the node that suits the pod best. A node on which room was
// made for the pod is taken if it will do. Volumes say on which nodes the pod's
// volumes can be, one selector for each that cannot be anywhere.
func (c *Cluster) Choose(pod *corev1.Pod, volumes ...*corev1.NodeSelector) Choice {
	q := c.ask(pod, volumes)
	out := Choice{Nodes: len(c.names)}
	if at, ok := c.nodes[pod.Status.NominatedNodeName]; ok && at.seen && q.refusalBeside(at, at.used) == nil {
		out.Node, out.Feasible = at.Name, 1
		return out
	}
	out.Refusals = map[string]Refusal{}
	var feasible []*node
	for _, name := range c.names {
		at := c.nodes[name]
		if r := q.refusalBeside(at, at.used); r != nil {
			out.Refusals[name] = *r
			continue
		}
		feasible = append(feasible, at)
	}
	out.Feasible = len(feasible)
	if len(feasible) > 0 {
		out.Node = q.best(feasible).Name
	}
	return out
}

// Refuse is the choice for a pod that no node can have for now, whichever it is.
func (c *Cluster) Refuse(why string) Choice { return Choice{Nodes: len(c.names), Before: why} }

// best has the highest score; among equals chance decides, but for the same
// pod in the same way.
func (q *question) best(feasible []*node) *node {
	if len(feasible) == 1 {
		return feasible[0]
	}
	scores := q.scores(feasible)
	best, bestLot := 0, q.lot(feasible[0])
	for i := 1; i < len(feasible); i++ {
		lot := q.lot(feasible[i])
		if scores[i] > scores[best] || scores[i] == scores[best] && lot > bestLot {
			best, bestLot = i, lot
		}
	}
	return feasible[best]
}

func (q *question) lot(at *node) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(q.pod.UID))
	_, _ = h.Write([]byte(at.Name))
	return h.Sum64()
}

// Rules are those that refused, in order.
func (c Choice) Rules() []Rule {
	set := map[Rule]bool{}
	if c.Before != "" {
		set[RuleVolumes] = true
	}
	for _, r := range c.Refusals {
		set[r.Rule] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Message is what a user reads when no node fits: how many nodes there are, and
// each reason with the number of nodes that have it.
func (c Choice) Message() string {
	if c.Nodes == 0 {
		return "no nodes available to schedule pods"
	}
	if c.Before != "" {
		return fmt.Sprintf("0/%d nodes are available: %s.", c.Nodes, c.Before)
	}
	reasons := make([][]string, 0, len(c.Refusals))
	for _, r := range c.Refusals {
		reasons = append(reasons, r.Reasons)
	}
	return available(c.Nodes, reasons)
}

// available counts reasons over nodes.
func available(nodes int, reasons [][]string) string {
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
