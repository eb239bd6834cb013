package authz

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

const (
	nodesGroup     = "system:nodes"
	nodeUserPrefix = "system:node:"
)

// NodeName returns the name of the node that the user represents. ok is false for other users.
func NodeName(u user.Info) (name string, ok bool) {
	name, ok = strings.CutPrefix(u.GetName(), nodeUserPrefix)
	return name, ok && name != "" && slices.Contains(u.GetGroups(), nodesGroup)
}

// IsUnnamedNode reports whether the user is a node without a name. Nodes do not have such a user.
func IsUnnamedNode(u user.Info) bool {
	return u.GetName() == nodeUserPrefix && slices.Contains(u.GetGroups(), nodesGroup)
}

// NodeAuthorizer authorizes nodes. Reads are limited to the objects that the node's pods refer to.
// Writes are limited to the resources that nodes write. The NodeRestriction admission plugin checks
// that a written object belongs to the node.
type NodeAuthorizer struct {
	authorizer.AuthorizerFunc

	graph *Graph
	rules []rbacv1.PolicyRule
}

// NewNodeAuthorizer returns an authorizer that uses the graph.
func NewNodeAuthorizer(g *Graph) *NodeAuthorizer {
	n := &NodeAuthorizer{graph: g, rules: nodeRules()}
	n.AuthorizerFunc = n.authorize
	return n
}

func (n *NodeAuthorizer) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, ok := NodeName(a.GetUser())
	if !ok || !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if reason := n.denyReason(ctx, node, a); reason != "" {
		return authorizer.DecisionNoOpinion, reason, nil
	}
	for i := range n.rules {
		if ruleAllows(&n.rules[i], a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// denyReason returns why the node may not perform the request, or "" to continue with the rules. A
// list or watch of a single name is treated like a get.
func (n *NodeAuthorizer) denyReason(ctx context.Context, node string, a authorizer.Attributes) string {
	switch (metav1.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}) {
	case metav1.GroupResource{Resource: "secrets"}, metav1.GroupResource{Resource: "configmaps"}:
		return n.readOne(ctx, node, a)
	case metav1.GroupResource{Resource: "persistentvolumeclaims"}, metav1.GroupResource{Resource: "persistentvolumes"}:
		if a.GetSubresource() == "status" {
			return n.requireReference(ctx, node, a)
		}
		return n.readOne(ctx, node, a)
	case metav1.GroupResource{Resource: "serviceaccounts"}:
		if (a.GetVerb() != "create" || a.GetSubresource() != "token") &&
			(a.GetVerb() != "get" || a.GetSubresource() != "") {
			return "can only get individual service accounts and create tokens for them"
		}
		return n.requireReference(ctx, node, a)
	case metav1.GroupResource{Resource: "pods"}:
		return n.pods(ctx, node, a)
	case metav1.GroupResource{Resource: "nodes"}:
		return requireOwnName(node, a, "node")
	case metav1.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		if a.GetNamespace() != corev1.NamespaceNodeLease {
			return fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
		}
		return requireOwnName(node, a, "node lease")
	case metav1.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		return requireOwnName(node, a, "CSINode")
	case metav1.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}:
		return n.attachment(ctx, node, a)
	case metav1.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		if a.GetSubresource() == "" && (a.GetVerb() == "create" || selectsNode(node, a)) {
			return ""
		}
		return "can only create podcertificaterequests, and list/watch them with spec.nodeName field selector"
	case metav1.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}:
		return n.readOne(ctx, node, a)
	case metav1.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}:
		return n.slices(ctx, node, a)
	}
	return ""
}

// readOne allows get, and list or watch of a single name.
func (n *NodeAuthorizer) readOne(ctx context.Context, node string, a authorizer.Attributes) string {
	if !a.IsReadOnly() || a.GetSubresource() != "" {
		return "can only read resources of this type"
	}
	if reason := n.requireReference(ctx, node, a); reason != "" {
		return reason
	}
	return ""
}

func (n *NodeAuthorizer) requireReference(ctx context.Context, node string, a authorizer.Attributes) string {
	if a.GetName() == "" {
		return "can only read namespaced object of this type by a single name"
	}
	if !n.graph.References(ctx, node, Ref{a.GetResource(), a.GetNamespace(), a.GetName()}) {
		return fmt.Sprintf("no relationship found between node '%s' and this object", node)
	}
	return ""
}

// pods allows reading by name, and list and watch with a field selector for the node. Writes are
// checked by the rules and by NodeRestriction.
func (n *NodeAuthorizer) pods(ctx context.Context, node string, a authorizer.Attributes) string {
	switch a.GetVerb() {
	case "get":
		return n.requireReference(ctx, node, a)
	case "list", "watch":
		if selectsNode(node, a) {
			return ""
		}
		if a.GetName() != "" {
			return n.requireReference(ctx, node, a)
		}
		return "can only list/watch pods with spec.nodeName field selector"
	}
	return ""
}

// slices allows requests for the ResourceSlices of the node. A create has no name in its path and
// is checked by NodeRestriction.
func (n *NodeAuthorizer) slices(ctx context.Context, node string, a authorizer.Attributes) string {
	switch {
	case a.GetVerb() == "create", selectsNode(node, a):
		return ""
	case a.GetName() == "":
		return "can only list/watch/deletecollection resourceslices with spec.nodeName field selector"
	case !n.graph.ownsSlice(ctx, node, a.GetName()):
		return fmt.Sprintf("no relationship found between node '%s' and this object", node)
	}
	return ""
}

// attachment allows reading a VolumeAttachment of the node.
func (n *NodeAuthorizer) attachment(ctx context.Context, node string, a authorizer.Attributes) string {
	switch {
	case a.GetVerb() != "get" || a.GetSubresource() != "" || a.GetName() == "":
		return "can only get individual resources of this type"
	case !n.graph.ownsAttachment(ctx, node, a.GetName()):
		return fmt.Sprintf("no relationship found between node '%s' and this object", node)
	}
	return ""
}

// selectsNode reports whether the field selector limits the request to the objects of the node.
func selectsNode(node string, a authorizer.Attributes) bool {
	wanted, err := a.GetFieldSelector()
	return err == nil && slices.ContainsFunc(wanted, func(r fields.Requirement) bool {
		return r.Field == "spec.nodeName" && r.Value == node && (r.Operator == selection.Equals ||
			r.Operator == selection.DoubleEquals)
	})
}

// requireOwnName allows access to the object with the node's name. A create has no name in its path
// and is checked by NodeRestriction.
func requireOwnName(node string, a authorizer.Attributes, resource string) string {
	if a.GetName() == node || a.GetVerb() == "create" && a.GetName() == "" {
		return ""
	}
	return fmt.Sprintf("can only access %s with the same name as the requesting node", resource)
}
