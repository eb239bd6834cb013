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

// forgetRoutes takes away what an earlier life of this node, configured otherwise,
// has made.
func (b *berth) forgetRoutes() {
	if b.config.Network.HostGateway {
		return
	}
	if err := gateway.Remove(b.routesFile(), b.log); err != nil {
		b.log.Error("routes and rules of an earlier configuration are left", "err", err)
	}
}

// makeGateway makes what routes to other nodes' pods, and the routes that the last
// life knew: pods may start before the server is heard.
func (j *joined) makeGateway() (err error) {
	c := j.b.config.Network
	if !c.HostGateway {
		return nil
	}
	var last []routes.Problem // of Changed, which is told in order
	j.gateway, err = gateway.New(gateway.Options{
		File: j.b.routesFile(), Log: j.b.log,
		Enabled: func() bool { return !cni.IsForeign(c.CNIConfDir) },
		OnChange: func(s gateway.Status) {
			for _, t := range s.Problems {
				if !slices.Contains(last, t) {
					j.events.OfNode(corev1.EventTypeWarning, "PodsNotReached", fmt.Sprintf("Pods of node %s are not reached from here: %s", t.Node, t.Message))
				}
			}
			last = s.Problems
			j.presence.Trigger()
		},
	})
	if err != nil {
		return fmt.Errorf("routes to other nodes' pods: %w", err)
	}
	_ = j.gateway.Sync() // says so itself, and is tried again
	return nil
}

// followNodes tells the gateway of the other nodes.
func (j *joined) followNodes(ctx context.Context) {
	j.client.Watch(ctx, apiclient.WatchOptions{
		Resource: apiclient.Nodes,
		Transform: func(o machinery.Object) {
			if n, ok := o.(*corev1.Node); ok { // of each node no more than the way there
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
				j.gateway.SetNodesUnknown(fmt.Sprintf("%s: nodes must be allowed to list and watch nodes, see networking.md", err))
			}
		},
	})
}

// otherNode is a node as the routes know it. What it says that is no address is
// left out.
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
	routesMade   = "BerthHasRoutes"
	routesFailed = "BerthHasNoRoutes"
	noPodRange   = "BerthHasNoPodRange"
)

// unavailable reports whether an agent of berth has told the server that the node
// has no network for pods.
func unavailable(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue && strings.HasPrefix(c.Reason, "BerthHas")
	})
}

// podNetwork is the condition NetworkUnavailable; nil: others say so. Who said that
// there is no network takes it back.
func (j *joined) podNetwork() *registration.NetworkCondition {
	if j.gateway == nil {
		if j.unavailable {
			return &registration.NetworkCondition{Reason: routesMade, Message: "the pods' network is not berth's matter any more"}
		}
		return nil
	}
	s := j.gateway.Status()
	n := &registration.NetworkCondition{Reason: routesMade}
	switch {
	case !s.Enabled:
		n.Message = "the pods' network is not berth's: another configuration counts in " + j.b.config.Network.CNIConfDir
	case s.Err != "":
		n.Unavailable, n.Reason, n.Message = true, routesFailed, s.Err
	case !j.b.host.ranged.Load() && j.gateway.LacksPodCIDRs():
		n.Unavailable, n.Reason, n.Message = true, noPodRange, "the server has not given the node a pod range (spec.podCIDRs)"
	default:
		n.Message = fmt.Sprintf("pods of %d of %d other nodes are reached", s.Reachable, s.Nodes)
	}
	for _, t := range s.Problems {
		n.Message += fmt.Sprintf("; node %s: %s", t.Node, t.Message)
	}
	if s.NodesUnknown != "" {
		n.Message += "; " + s.NodesUnknown
	}
	return n
}
