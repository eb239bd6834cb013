package placement

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/control/volumes"
)

// Result is the node selected for a pod or, for each node, why it was rejected.
type Result struct {
	Node       string // empty if no node is feasible
	Feasible   int    // number of feasible nodes
	Rejections map[string]Rejection
	NodeCount  int // number of all nodes

	// Volumes is what the node provides to the claims that wait for it.
	Volumes volumes.Assignment

	// PreFilterReason is why no node was filtered at all.
	PreFilterReason string
}

// Schedule selects the best node for the pod. The pod's nominated node is used if it is feasible.
func (c *Cluster) Schedule(pod *corev1.Pod, with Related) Result {
	a := c.newAttempt(pod, with)
	out := Result{NodeCount: len(c.names)}
	if node := a.nominatedNode(); node != nil {
		out.Node, out.Feasible = node.Name, 1
		out.Volumes, _ = volumes.MatchNode(with.Claims, node.object())
		return out
	}
	out.Rejections = map[string]Rejection{}
	var feasible []*nodeInfo
	for _, name := range c.names {
		node := c.nodes[name]
		if r := a.filterWithNominated(node, node.used); r != nil {
			out.Rejections[name] = *r
			continue
		}
		feasible = append(feasible, node)
	}
	out.Feasible = len(feasible)
	if len(feasible) > 0 {
		node := a.selectNode(feasible)
		out.Node = node.Name
		out.Volumes, _ = volumes.MatchNode(with.Claims, node.object())
	}
	return out
}

// nominatedNode returns the nominated node of the pod if it is feasible, or nil.
func (a *attempt) nominatedNode() *nodeInfo {
	node, ok := a.cluster.nodes[a.pod.Status.NominatedNodeName]
	if !ok || !node.exists || a.filterWithNominated(node, node.used) != nil {
		return nil
	}
	return node
}

// Unschedulable returns the result for a pod that cannot run on any node for the given reason.
func (c *Cluster) Unschedulable(reason string) Result {
	return Result{NodeCount: len(c.names), PreFilterReason: reason}
}

// selectNode returns the node with the highest score. Ties are broken by a hash, which makes the
// result reproducible for a pod.
func (a *attempt) selectNode(feasible []*nodeInfo) *nodeInfo {
	if len(feasible) == 1 {
		return feasible[0]
	}
	scores := a.score(feasible)
	best, bestTie := 0, a.tieBreaker(feasible[0])
	for i := 1; i < len(feasible); i++ {
		tie := a.tieBreaker(feasible[i])
		if scores[i] > scores[best] || scores[i] == scores[best] && tie > bestTie {
			best, bestTie = i, tie
		}
	}
	return feasible[best]
}

func (a *attempt) tieBreaker(node *nodeInfo) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.pod.UID))
	_, _ = h.Write([]byte(node.Name))
	return h.Sum64()
}

// RejectedBy returns the filters that rejected nodes, sorted.
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

// Message returns kube-scheduler's message for an unschedulable pod: the number of nodes, and each
// reason with the number of nodes it applies to.
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

// unavailableMessage counts the nodes for each reason.
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
