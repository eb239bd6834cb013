package gateway

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Condition is the node condition NetworkUnavailable.
type Condition struct {
	Unavailable     bool
	Reason, Message string
}

// Reasons of the condition NetworkUnavailable.
const (
	reasonPrefix        = "BerthHas"
	reasonHasRoutes     = reasonPrefix + "Routes"
	reasonHasNoRoutes   = reasonPrefix + "NoRoutes"
	reasonHasNoPodRange = reasonPrefix + "NoPodRange"
)

// NoLongerManaged is the condition of a node whose pod network was managed by berth.
func NoLongerManaged() Condition {
	return Condition{Reason: reasonHasRoutes, Message: "the pod network is no longer managed by berth"}
}

// UnavailableByBerth reports whether a berth agent has set the condition NetworkUnavailable.
func UnavailableByBerth(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue &&
			strings.HasPrefix(c.Reason, reasonPrefix)
	})
}

// Condition returns the condition NetworkUnavailable. confDir is the directory of the network
// configuration. needsPodCIDRs means that the API server has not assigned pod CIDRs to this node.
func (g *Gateway) Condition(confDir string, needsPodCIDRs bool) Condition {
	return g.Status().condition(confDir, needsPodCIDRs && g.LacksPodCIDRs())
}

func (s Status) condition(confDir string, noPodCIDRs bool) Condition {
	c := Condition{Reason: reasonHasRoutes}
	switch {
	case !s.Enabled:
		c.Message = "the pod network is not managed by berth: another configuration is used in " + confDir
	case s.Err != "":
		c.Unavailable, c.Reason, c.Message = true, reasonHasNoRoutes, s.Err
	case noPodCIDRs:
		c.Unavailable, c.Reason, c.Message = true, reasonHasNoPodRange,
			"no pod CIDR assigned to the node (spec.podCIDRs)"
	default:
		c.Message = fmt.Sprintf("pods of %d of %d other nodes are reachable", s.Reachable, s.Nodes)
	}
	for _, t := range s.Problems {
		c.Message += fmt.Sprintf("; node %s: %s", t.Node, t.Message)
	}
	if s.NodesUnknown != "" {
		c.Message += "; " + s.NodesUnknown
	}
	return c
}
