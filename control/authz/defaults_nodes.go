package authz

import rbacv1 "k8s.io/api/rbac/v1"

// NodeBootstrapGroup is what tokens for joining carry; kubeadm's name for it, so
// that its tools know it.
const NodeBootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"

// returningNodes come back with a certificate that has expired; see authn.
const returningNodes = "berth.dev:returning-nodes"

// nodes are the roles of nodes and of those that become one.
func (d *Defaults) nodes() {
	d.role("system:node", nodeRules()...)
	// Bound to nobody: the node authorizer knows better which objects are whose.
	d.bind("system:node")
	d.role("system:node-bootstrapper", can("create get list watch", "certificates", "certificatesigningrequests"))
	d.bindAs("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(NodeBootstrapGroup))
	d.bindAs("berth.dev:returning-nodes", "system:node-bootstrapper", group(returningNodes))
	// Whose requests are approved without anybody's doing. To take that away, see
	// berth.dev:pod-routes below.
	d.bindAs("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", group(NodeBootstrapGroup))
	d.bindAs("kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", group(nodesGroup), group(returningNodes))
	// Nodes route to each other's pods, and so know each other's ranges and
	// addresses. Take it away by an empty binding that is not kept: the annotation
	// rbac.authorization.kubernetes.io/autoupdate: "false".
	d.role("berth.dev:pod-routes", can("list watch", "core", "nodes"))
	d.bind("berth.dev:pod-routes", group(nodesGroup))
	// A joining node asks whether its name is taken.
	d.role("kubeadm:get-nodes", can("get", "core", "nodes"))
	d.bind("kubeadm:get-nodes", group(NodeBootstrapGroup))
	d.role("system:node-problem-detector", can("get", "core", "nodes"), can("patch", "core", "nodes/status"), telling())
	d.role("system:node-proxier",
		can("list watch", "core", "endpoints services"),
		can("read", "core", "nodes"),
		can("list watch", "discovery", "endpointslices"),
		can("list watch", "networking", "servicecidrs"),
		telling())
	d.bind("system:node-proxier", userNamed("system:kube-proxy"))
}

// nodeRules are what any node may do; whose objects they are is judged by the
// node authorizer (reading) and by NodeRestriction (writing).
func nodeRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		can("create", "authentication", "tokenreviews"),
		can("create", "authorization", "localsubjectaccessreviews subjectaccessreviews"),
		can("read", "core", "services"),
		can("create read", "core", "nodes"),
		can("patch update", "core", "nodes nodes/status"),
		telling(),
		can("create delete read", "core", "pods"),
		can("patch update", "core", "pods/status"),
		can("create", "core", "pods/eviction"),
		can("read", "core", "configmaps persistentvolumeclaims persistentvolumes secrets"),
		can("create read", "certificates", "certificatesigningrequests"),
		can("create get update patch delete", "coordination", "leases"),
		can("get", "storage", "volumeattachments"),
		can("create", "core", "serviceaccounts/token"),
		can("get patch update", "core", "persistentvolumeclaims/status"),
		can("read", "storage", "csidrivers"),
		can("create delete get patch update", "storage", "csinodes"),
		can("read", "node", "runtimeclasses"),
		can("get", "resource", "resourceclaims"),
		can("read write", "resource", "resourceslices"),
	}
}
