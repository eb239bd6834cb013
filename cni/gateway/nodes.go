package gateway

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"berth/cni/routes"
	"berth/internal/apiclient"
)

// Watch updates the other nodes from the Nodes of the cluster until ctx ends. self is the name of
// this node.
func (g *Gateway) Watch(ctx context.Context, client *apiclient.Client, self string) {
	client.Watch(ctx, apiclient.WatchOptions{
		Resource: apiclient.Nodes,
		Transform: func(o runtime.Object) {
			if n, ok := o.(*corev1.Node); ok { // keep only what the routes need
				n.Labels, n.Annotations, n.Status = nil, nil, corev1.NodeStatus{Addresses: n.Status.Addresses}
			}
		},
		OnReplace: func(all []runtime.Object) {
			g.SetNodesUnknown("")
			g.SetNodes(otherNodes(all, self))
		},
		OnUpdate: func(o runtime.Object) {
			if n, ok := o.(*corev1.Node); ok && n.Name != self {
				g.SetNode(nodeOf(n))
			}
		},
		OnDelete: func(o runtime.Object) {
			if n, ok := o.(*corev1.Node); ok {
				g.DeleteNode(n.Name)
			}
		},
		OnError: func(err error) {
			if apierrors.IsForbidden(err) {
				g.SetNodesUnknown(
					fmt.Sprintf("%s: the node must be allowed to list and watch nodes, see networking.md", err),
				)
			}
		},
	})
}

func otherNodes(all []runtime.Object, self string) (out []routes.Node) {
	for _, o := range all {
		if n, ok := o.(*corev1.Node); ok && n.Name != self {
			out = append(out, nodeOf(n))
		}
	}
	return out
}

// nodeOf converts a Node for the routes. Invalid addresses are ignored.
func nodeOf(n *corev1.Node) routes.Node {
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
