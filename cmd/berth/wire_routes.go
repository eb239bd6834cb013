package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	machinery "k8s.io/apimachinery/pkg/runtime"

	"berth/cni"
	"berth/cni/gateway"
	"berth/cni/routes"
	"berth/internal/apiclient"
	"berth/node/registration"
)

func (b *berth) routesFile() string { return filepath.Join(b.config.StateDir, gateway.FileName) }

// removeRoutes removes routes and rules that an earlier configuration has created.
func (b *berth) removeRoutes() {
	if b.config.Network.HostGateway {
		return
	}
	if err := gateway.Remove(b.routesFile(), b.log); err != nil {
		b.log.Error("routes and rules of an earlier configuration could not be removed", "err", err)
	}
}

// makeGateway creates the routes to pods of other nodes, and restores the persisted routes, because
// pods can start before the API server is available.
func (j *cluster) makeGateway() (err error) {
	c := j.b.config.Network
	if !c.HostGateway {
		return nil
	}
	var last []routes.Problem // calls of OnChange are ordered
	j.gateway, err = gateway.New(gateway.Options{
		File: j.b.routesFile(), Log: j.b.log,
		Enabled: func() bool { return !cni.IsForeign(c.CNIConfDir) },
		OnChange: func(s gateway.Status) {
			for _, t := range s.Problems {
				if !slices.Contains(last, t) {
					j.events.RecordNodeEvent(
						corev1.EventTypeWarning,
						"PodsNotReached",
						fmt.Sprintf("Pods of node %s are unreachable: %s", t.Node, t.Message),
					)
				}
			}
			last = s.Problems
			j.registration.Trigger()
		},
	})
	if err != nil {
		return fmt.Errorf("routes to pods of other nodes: %w", err)
	}
	_ = j.gateway.Sync() // logs errors itself and is retried
	return nil
}

// followNodes updates the gateway from the Nodes of the cluster.
func (j *cluster) followNodes(ctx context.Context) {
	j.client.Watch(ctx, apiclient.WatchOptions{
		Resource: apiclient.Nodes,
		Transform: func(o machinery.Object) {
			if n, ok := o.(*corev1.Node); ok { // keep only what the routes need
				n.Labels, n.Annotations, n.Status = nil, nil, corev1.NodeStatus{Addresses: n.Status.Addresses}
			}
		},
		OnReplace: func(all []machinery.Object) {
			var nodes []routes.Node
			for _, o := range all {
				if n, ok := o.(*corev1.Node); ok && n.Name != j.b.config.NodeName {
					nodes = append(nodes, otherNode(n))
				}
			}
			j.gateway.SetNodesUnknown("")
			j.gateway.SetNodes(nodes)
		},
		OnUpdate: func(o machinery.Object) {
			if n, ok := o.(*corev1.Node); ok && n.Name != j.b.config.NodeName {
				j.gateway.SetNode(otherNode(n))
			}
		},
		OnDelete: func(o machinery.Object) {
			if n, ok := o.(*corev1.Node); ok {
				j.gateway.DeleteNode(n.Name)
			}
		},
		OnError: func(err error) {
			if apierrors.IsForbidden(err) {
				j.gateway.SetNodesUnknown(
					fmt.Sprintf("%s: the node must be allowed to list and watch nodes, see networking.md", err),
				)
			}
		},
	})
}

// otherNode converts a Node for the routes. Invalid addresses are ignored.
func otherNode(n *corev1.Node) routes.Node {
	out := routes.Node{Name: n.Name, RegisteredAt: n.CreationTimestamp.UTC()}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			out.PodCIDRs = append(out.PodCIDRs, p)
		}
	}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out.Addresses = append(out.Addresses, ip)
		}
	}
	return out
}

// Reasons of the condition NetworkUnavailable.
const (
	reasonHasRoutes     = "BerthHasRoutes"
	reasonHasNoRoutes   = "BerthHasNoRoutes"
	reasonHasNoPodRange = "BerthHasNoPodRange"
)

// networkUnavailableByBerth reports whether a berth agent has set the condition NetworkUnavailable.
func networkUnavailableByBerth(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue &&
			strings.HasPrefix(c.Reason, "BerthHas")
	})
}

// networkCondition returns the condition NetworkUnavailable, or nil if another component manages it. A
// condition that berth has set is cleared by berth.
func (j *cluster) networkCondition() *registration.NetworkCondition {
	if j.gateway == nil {
		if j.networkUnavailable {
			return &registration.NetworkCondition{
				Reason:  reasonHasRoutes,
				Message: "the pod network is no longer managed by berth",
			}
		}
		return nil
	}
	s := j.gateway.Status()
	n := &registration.NetworkCondition{Reason: reasonHasRoutes}
	switch {
	case !s.Enabled:
		n.Message = "the pod network is not managed by berth: another configuration is " +
			"used in " + j.b.config.Network.CNIConfDir
	case s.Err != "":
		n.Unavailable, n.Reason, n.Message = true, reasonHasNoRoutes, s.Err
	case !j.b.host.hasPodCIDRs.Load() && j.gateway.LacksPodCIDRs():
		n.Unavailable, n.Reason, n.Message = true, reasonHasNoPodRange,
			"no pod CIDR assigned to the node (spec.podCIDRs)"
	default:
		n.Message = fmt.Sprintf("pods of %d of %d other nodes are reachable", s.Reachable, s.Nodes)
	}
	for _, t := range s.Problems {
		n.Message += fmt.Sprintf("; node %s: %s", t.Node, t.Message)
	}
	if s.NodesUnknown != "" {
		n.Message += "; " + s.NodesUnknown
	}
	return n
}
