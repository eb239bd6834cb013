package authz

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const healthPaths = "/healthz /livez /readyz"

// leaseRules returns the rules for leader election with the named Lease.
func leaseRules(name string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{resourceRule("create", "coordination", "leases"),
		resourceRule("get update", "coordination",
			"leases", name)}
}

// eventsRule allows recording events.
func eventsRule() rbacv1.PolicyRule {
	return resourceRule("create patch update", "core events", "events")
}

// system adds the roles of system components and of all users.
func (d *Defaults) system() {
	d.role("system:discovery",
		nonResourceRule("/api /api/* /apis /apis/* /openapi /openapi/* /version /version/ "+healthPaths))
	d.bind("system:discovery", group("system:authenticated"))
	d.role("system:public-info-viewer", nonResourceRule("/version /version/ "+healthPaths))
	d.bind("system:public-info-viewer", group("system:authenticated"), group("system:unauthenticated"))
	d.role("system:basic-user",
		resourceRule("create", "authorization", "selfsubjectaccessreviews selfsubjectrulesreviews"),
		resourceRule("create", "authentication", "selfsubjectreviews"))
	d.bind("system:basic-user", group("system:authenticated"))
	d.role("system:monitoring", nonResourceRule("/metrics /metrics/slis "+healthPaths+" /healthz/* /livez/* /readyz/*"),
		resourceRule("get", "core", "nodes/metrics"))
	d.bind("system:monitoring", group("system:monitoring"))
	d.role("system:service-account-issuer-discovery", nonResourceRule("/.well-known/openid-configuration "+
		"/.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/"))
	d.bind("system:service-account-issuer-discovery", group("system:serviceaccounts"))
	d.role("system:cluster-trust-bundle-discovery", resourceRule("read", "certificates", "clustertrustbundles"))
	d.bind("system:cluster-trust-bundle-discovery", group("system:serviceaccounts"))
	d.role("system:auth-delegator",
		resourceRule("create", "authentication", "tokenreviews"),
		resourceRule("create", "authorization", "subjectaccessreviews"))
	d.role("system:kubelet-api-admin",
		resourceRule("read proxy", "core", "nodes"),
		resourceRule("*", "core", "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy "+
			"nodes/stats"))
	// the API server, when kubelets review its access
	d.bind("system:kubelet-api-admin", userNamed("kube-apiserver-kubelet-client"))
	d.role("system:kube-dns", resourceRule("list watch", "core", "endpoints services"))
	d.role("system:persistent-volume-provisioner",
		resourceRule("read create delete", "core", "persistentvolumes"),
		resourceRule("read update", "core", "persistentvolumeclaims"),
		resourceRule("read", "storage", "storageclasses"),
		resourceRule("watch", "core", "events"), eventsRule())
	d.signers()
	d.scheduler()
	d.controllerManager()
	d.namespacedRole(metav1.NamespaceSystem, "extension-apiserver-authentication-reader",
		[]rbacv1.Subject{userNamed("system:kube-controller-manager"), userNamed("system:kube-scheduler")},
		resourceRule("read", "core", "configmaps", "extension-apiserver-authentication"))
}

// signers adds the roles that approve certificates.
func (d *Defaults) signers() {
	for role, signer := range map[string]string{
		"legacy-unknown-approver":                "kubernetes.io/legacy-unknown",
		"kubelet-serving-approver":               "kubernetes.io/kubelet-serving",
		"kube-apiserver-client-approver":         "kubernetes.io/kube-apiserver-client",
		"kube-apiserver-client-kubelet-approver": "kubernetes.io/kube-apiserver-client-kubelet",
	} {
		d.role("system:certificates.k8s.io:"+role, resourceRule("approve", "certificates", "signers", signer))
	}
	d.role("system:certificates.k8s.io:certificatesigningrequests:nodeclient", resourceRule("create", "certificates",
		"certificatesigningrequests/nodeclient"))
	d.role("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
		resourceRule("create", "certificates",
			"certificatesigningrequests/selfnodeclient"))
}

// scheduler adds the roles of the scheduler, in this server or as a separate process.
func (d *Defaults) scheduler() {
	d.role("system:kube-scheduler",
		eventsRule(),
		resourceRule("read delete", "core", "pods"),
		resourceRule("create", "core", "bindings pods/binding"),
		resourceRule("patch update", "core", "pods/status"),
		resourceRule("read", "core", "namespaces nodes persistentvolumeclaims persistentvolumes "+
			"replicationcontrollers "+
			"services"),
		resourceRule("read", "apps", "replicasets statefulsets"),
		resourceRule("read", "policy", "poddisruptionbudgets"),
		resourceRule("read", "scheduling", "priorityclasses"),
		resourceRule("read", "storage", "csidrivers csinodes csistoragecapacities storageclasses volumeattachments"),
		resourceRule("read", "resource", "deviceclasses devicetaintrules resourceclaims resourceslices"),
		resourceRule("create delete patch update", "resource", "resourceclaims"),
		resourceRule("patch update", "resource", "resourceclaims/binding"),
		resourceRule("read patch update", "resource",
			"resourceclaims/status"),
		resourceRule("update", "core", "pods/finalizers"),
		resourceRule("read", "coordination", "leases"),
		resourceRule("create", "coordination", "leases"), resourceRule("get update", "coordination", "leases",
			"kube-scheduler"),
		resourceRule("create", "authentication", "tokenreviews"),
		resourceRule("create", "authorization", "subjectaccessreviews"))
	d.bind("system:kube-scheduler", userNamed("system:kube-scheduler"))
	d.role("system:volume-scheduler",
		resourceRule("read patch update", "core", "persistentvolumes"),
		resourceRule("read patch update", "core", "persistentvolumeclaims"),
		resourceRule("read", "storage", "storageclasses"))
	d.bind("system:volume-scheduler", userNamed("system:kube-scheduler"))
	d.namespacedRole(metav1.NamespaceSystem, "system::leader-locking-kube-scheduler",
		[]rbacv1.Subject{userNamed("system:kube-scheduler")}, leaseRules("kube-scheduler")...)
}

// controllerManager adds the roles of kube-controller-manager as a separate process. Its
// controllers use individual service accounts.
func (d *Defaults) controllerManager() {
	d.role("system:kube-controller-manager",
		eventsRule(),
		resourceRule("create", "coordination", "leases"), resourceRule("get update", "coordination", "leases",
			"kube-controller-manager"),
		resourceRule("create get update", "core", "serviceaccounts"),
		resourceRule("delete", "core", "secrets serviceaccounts"),
		resourceRule("get", "core", "configmaps namespaces secrets"),
		resourceRule("create update", "core", "configmaps secrets"),
		resourceRule("create", "authentication", "tokenreviews"),
		resourceRule("create", "authorization", "subjectaccessreviews"),
		resourceRule("create", "core", "serviceaccounts/token"),
		resourceRule("list watch", "*", "*"))
	d.bind("system:kube-controller-manager", userNamed("system:kube-controller-manager"))
	d.namespacedRole(metav1.NamespaceSystem, "system::leader-locking-kube-controller-manager",
		[]rbacv1.Subject{userNamed("system:kube-controller-manager")}, leaseRules("kube-controller-manager")...)
	d.namespacedRole(metav1.NamespaceSystem, "system:controller:bootstrap-signer",
		[]rbacv1.Subject{account("bootstrap-signer")}, resourceRule("read", "core", "secrets"))
	d.namespacedRole(metav1.NamespaceSystem, "system:controller:token-cleaner",
		[]rbacv1.Subject{account("token-cleaner")},
		resourceRule("read delete", "core", "secrets"), eventsRule())
	d.namespacedRole(metav1.NamespacePublic, "system:controller:bootstrap-signer",
		[]rbacv1.Subject{account("bootstrap-signer")},
		resourceRule("read", "core", "configmaps"), resourceRule("update", "core", "configmaps", "cluster-info"),
		eventsRule())
}
