package authz

import rbacv1 "k8s.io/api/rbac/v1"

// NodeBootstrapGroup is the group of join tokens. It has kubeadm's name, for compatibility with its
// tools.
const NodeBootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"

// returningNodesGroup is the group of nodes with an expired certificate. See package authn.
const returningNodesGroup = "berth.dev:returning-nodes"

// nodes adds the roles of nodes and of joining nodes.
func (d *Defaults) nodes() {
	d.role("system:node", nodeRules()...)
	// The role has no subjects: the node authorizer grants these rules per object.
	d.bind("system:node")
	d.role("system:node-bootstrapper", resourceRule("create get list watch", "certificates",
		"certificatesigningrequests"))
	d.bindAs("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(NodeBootstrapGroup))
	d.bindAs("berth.dev:returning-nodes", "system:node-bootstrapper", group(returningNodesGroup))
	// Subjects whose requests are approved automatically. To disable this, see berth.dev:pod-routes
	// below.
	d.bindAs("kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
		group(NodeBootstrapGroup))
	d.bindAs("kubeadm:node-autoapprove-certificate-rotation",
		"system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", group(nodesGroup),
		group(returningNodesGroup))
	// Nodes route to each other's pods, so they may read the pod CIDRs and addresses of all nodes.
	// To disable this, remove the subjects and set the annotation
	// rbac.authorization.kubernetes.io/autoupdate: "false".
	d.role("berth.dev:pod-routes", resourceRule("list watch", "core", "nodes"))
	d.bind("berth.dev:pod-routes", group(nodesGroup))
	// Nodes route the traffic of Services and answer DNS queries about them.
	d.role("berth.dev:services", resourceRule("list watch", "discovery", "endpointslices"))
	d.bind("berth.dev:services", group(nodesGroup))
	// Nodes enforce NetworkPolicies. They read the addresses that policies select, but no pods of other
	// nodes. A cluster that was created by an earlier version has a role berth.dev:network-policy, which
	// permits to read all pods, so the name is another one.
	d.role("berth.dev:network-policy-addresses", resourceRule("list watch", "networking", "networkpolicies"),
		resourceRule("list watch", "policies.berth.dev", "networkpolicyaddresses"))
	d.bind("berth.dev:network-policy-addresses", group(nodesGroup))
	// A joining node checks whether its name is in use.
	d.role("kubeadm:get-nodes", resourceRule("get", "core", "nodes"))
	d.bind("kubeadm:get-nodes", group(NodeBootstrapGroup))
	d.role("system:node-problem-detector", resourceRule("get", "core", "nodes"), resourceRule("patch", "core",
		"nodes/status"), eventsRule())
	d.role("system:node-proxier",
		resourceRule("list watch", "core", "endpoints services"),
		resourceRule("read", "core", "nodes"),
		resourceRule("list watch", "discovery", "endpointslices"),
		resourceRule("list watch", "networking", "servicecidrs"),
		eventsRule())
	d.bind("system:node-proxier", userNamed("system:kube-proxy"))
}

// nodeRules are the permissions of all nodes. The node authorizer (reads) and NodeRestriction
// (writes) limit them to a node's own objects.
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
		resourceRule("read", "certificates", "clustertrustbundles"),
		resourceRule("create read", "certificates", "podcertificaterequests"),
		resourceRule("create get update patch delete", "coordination", "leases"),
		resourceRule("get", "storage", "volumeattachments"),
		resourceRule("create", "core", "serviceaccounts/token"),
		resourceRule("get", "core", "serviceaccounts"),
		resourceRule("get patch update", "core", "persistentvolumeclaims/status"),
		resourceRule("read", "storage", "csidrivers"),
		resourceRule("create delete get patch update", "storage", "csinodes"),
		resourceRule("read", "node", "runtimeclasses"),
		resourceRule("get", "resource", "resourceclaims"),
		resourceRule("read write", "resource", "resourceslices"),
	}
}
