package authz

import rbacv1 "k8s.io/api/rbac/v1"

// NodeBootstrapGroup is what tokens for joining carry; kubeadm's name for it, so
// that its tools know it.
const NodeBootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"

// returningNodesGroup come back with a certificate that has expired; see authn.
const returningNodesGroup = "berth.dev:returning-nodes"

// nodes are the roles of nodes and of those that become one.
func (d *Defaults) nodes() {
	d.role("system:node", nodeRules()...)
	// Bound to nobody: the node authorizer knows better which objects are whose.
	d.bind("system:node")
	d.role("system:node-bootstrapper", resourceRule("create get list watch", "certificates", "certificatesigningrequests"))
	d.bindAs("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(NodeBootstrapGroup))
	d.bindAs("berth.dev:returning-nodes", "system:node-bootstrapper", group(returningNodesGroup))
	// Whose requests are approved without anybody's doing. To take that away, see
	// berth.dev:pod-routes below.
	d.bindAs("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", group(NodeBootstrapGroup))
	d.bindAs("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", group(nodesGroup), group(returningNodesGroup))
	// Nodes route to each other's pods, and so know each other's ranges and
	// addresses. Take it away by an empty binding that is not kept: the annotation
	// rbac.authorization.kubernetes.io/autoupdate: "false".
	d.role("berth.dev:pod-routes", resourceRule("list watch", "core", "nodes"))
	d.bind("berth.dev:pod-routes", group(nodesGroup))
	// A joining node asks whether its name is taken.
	d.role("kubeadm:get-nodes", resourceRule("get", "core", "nodes"))
	d.bind("kubeadm:get-nodes", group(NodeBootstrapGroup))
	d.role("system:node-problem-detector", resourceRule("get", "core", "nodes"), resourceRule("patch", "core", "nodes/status"), eventsRule())
	d.role("system:node-proxier",
		resourceRule("list watch", "core", "endpoints services"),
		resourceRule("read", "core", "nodes"),
		resourceRule("list watch", "discovery", "endpointslices"),
		resourceRule("list watch", "networking", "servicecidrs"),
		eventsRule())
	d.bind("system:node-proxier", userNamed("system:kube-proxy"))
}

// nodeRules are what any node may do; whose objects they are is judged by the
// node authorizer (reading) and by NodeRestriction (writing).
func nodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		resourceRule("create", "authentication", "tokenreviews"),
		resourceRule("create", "authorization", "localsubjectaccessreviews subjectaccessreviews"),
		resourceRule("read", "core", "services"),
		resourceRule("create read", "core", "nodes"),
		resourceRule("patch update", "core", "nodes nodes/status"),
		eventsRule(),
		resourceRule("create delete read", "core", "pods"),
		resourceRule("patch update", "core", "pods/status"),
		resourceRule("create", "core", "pods/eviction"),
		resourceRule("read", "core", "configmaps persistentvolumeclaims persistentvolumes secrets"),
		resourceRule("create read", "certificates", "certificatesigningrequests"),
		resourceRule("create get update patch delete", "coordination", "leases"),
		resourceRule("get", "storage", "volumeattachments"),
		resourceRule("create", "core", "serviceaccounts/token"),
		resourceRule("get patch update", "core", "persistentvolumeclaims/status"),
		resourceRule("read", "storage", "csidrivers"),
		resourceRule("create delete get patch update", "storage", "csinodes"),
		resourceRule("read", "node", "runtimeclasses"),
		resourceRule("get", "resource", "resourceclaims"),
		resourceRule("read write", "resource", "resourceslices"),
	}
}
