package authz

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const health = "/healthz /livez /readyz"

// leasing is what a leader election needs: to make the named lease and keep it.
func leasing(name string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{can("create", "coordination", "leases"), can("get update", "coordination", "leases", name)}
}

// telling is what events need.
func telling() rbacv1.PolicyRule { return can("create patch update", "core events", "events") }

// system are the roles of the parts of a cluster and of everybody.
func (d *Defaults) system() {
	d.role("system:discovery", fetch("/api /api/* /apis /apis/* /openapi /openapi/* /version /version/ "+health))
	d.bind("system:discovery", group("system:authenticated"))
	d.role("system:public-info-viewer", fetch("/version /version/ "+health))
	d.bind("system:public-info-viewer", group("system:authenticated"), group("system:unauthenticated"))
	d.role("system:basic-user",
		can("create", "authorization", "selfsubjectaccessreviews selfsubjectrulesreviews"),
		can("create", "authentication", "selfsubjectreviews"))
	d.bind("system:basic-user", group("system:authenticated"))
	d.role("system:monitoring", fetch("/metrics /metrics/slis "+health+" /healthz/* /livez/* /readyz/*"), can("get", "core", "nodes/metrics"))
	d.bind("system:monitoring", group("system:monitoring"))
	d.role("system:service-account-issuer-discovery", fetch("/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/"))
	d.bind("system:service-account-issuer-discovery", group("system:serviceaccounts"))
	d.role("system:auth-delegator",
		can("create", "authentication", "tokenreviews"),
		can("create", "authorization", "subjectaccessreviews"))
	d.role("system:kubelet-api-admin",
		can("read proxy", "core", "nodes"),
		can("*", "core", "nodes/configz nodes/healthz nodes/log nodes/metrics nodes/pods nodes/proxy nodes/stats"))
	d.bind("system:kubelet-api-admin", userNamed("kube-apiserver-kubelet-client")) // the server, which nodes ask about
	d.role("system:kube-dns", can("list watch", "core", "endpoints services"))
	d.role("system:persistent-volume-provisioner",
		can("read create delete", "core", "persistentvolumes"),
		can("read update", "core", "persistentvolumeclaims"),
		can("read", "storage", "storageclasses"),
		can("watch", "core", "events"), telling())
	d.signers()
	d.scheduler()
	d.manager()
	d.local(metav1.NamespaceSystem, "extension-apiserver-authentication-reader",
		[]rbacv1.Subject{userNamed("system:kube-controller-manager"), userNamed("system:kube-scheduler")},
		can("read", "core", "configmaps", "extension-apiserver-authentication"))
}

// signers are the roles of who approves certificates.
func (d *Defaults) signers() {
	for role, signer := range map[string]string{
		"legacy-unknown-approver":                "kubernetes.io/legacy-unknown",
		"kubelet-serving-approver":               "kubernetes.io/kubelet-serving",
		"kube-apiserver-client-approver":         "kubernetes.io/kube-apiserver-client",
		"kube-apiserver-client-kubelet-approver": "kubernetes.io/kube-apiserver-client-kubelet",
	} {
		d.role("system:certificates.k8s.io:"+role, can("approve", "certificates", "signers", signer))
	}
	d.role("system:certificates.k8s.io:certificatesigningrequests:nodeclient", can("create", "certificates", "certificatesigningrequests/nodeclient"))
	d.role("system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", can("create", "certificates", "certificatesigningrequests/selfnodeclient"))
}

// scheduler is what a scheduler of its own process needs.
func (d *Defaults) scheduler() {
	d.role("system:kube-scheduler",
		telling(),
		can("read delete", "core", "pods"),
		can("create", "core", "bindings pods/binding"),
		can("patch update", "core", "pods/status"),
		can("read", "core", "namespaces nodes persistentvolumeclaims persistentvolumes replicationcontrollers services"),
		can("read", "apps", "replicasets statefulsets"),
		can("read", "policy", "poddisruptionbudgets"),
		can("read", "scheduling", "priorityclasses"),
		can("read", "storage", "csidrivers csinodes csistoragecapacities storageclasses volumeattachments"),
		can("read", "resource", "deviceclasses devicetaintrules resourceclaims resourceslices"),
		can("create delete patch update", "resource", "resourceclaims"),
		can("patch update", "resource", "resourceclaims/binding"), can("read patch update", "resource", "resourceclaims/status"),
		can("update", "core", "pods/finalizers"),
		can("read", "coordination", "leases"),
		can("create", "coordination", "leases"), can("get update", "coordination", "leases", "kube-scheduler"),
		can("create", "authentication", "tokenreviews"),
		can("create", "authorization", "subjectaccessreviews"))
	d.bind("system:kube-scheduler", userNamed("system:kube-scheduler"))
	d.role("system:volume-scheduler",
		can("read patch update", "core", "persistentvolumes"),
		can("read patch update", "core", "persistentvolumeclaims"),
		can("read", "storage", "storageclasses"))
	d.bind("system:volume-scheduler", userNamed("system:kube-scheduler"))
	d.local(metav1.NamespaceSystem, "system::leader-locking-kube-scheduler", []rbacv1.Subject{userNamed("system:kube-scheduler")}, leasing("kube-scheduler")...)
}

// manager is what a controller manager of its own process needs; each of its
// controllers then acts as a service account of its own.
func (d *Defaults) manager() {
	d.role("system:kube-controller-manager",
		telling(),
		can("create", "coordination", "leases"), can("get update", "coordination", "leases", "kube-controller-manager"),
		can("create get update", "core", "serviceaccounts"),
		can("delete", "core", "secrets serviceaccounts"),
		can("get", "core", "configmaps namespaces secrets"),
		can("create update", "core", "configmaps secrets"),
		can("create", "authentication", "tokenreviews"),
		can("create", "authorization", "subjectaccessreviews"),
		can("create", "core", "serviceaccounts/token"),
		can("list watch", "*", "*"))
	d.bind("system:kube-controller-manager", userNamed("system:kube-controller-manager"))
	d.local(metav1.NamespaceSystem, "system::leader-locking-kube-controller-manager",
		[]rbacv1.Subject{userNamed("system:kube-controller-manager")}, leasing("kube-controller-manager")...)
	d.local(metav1.NamespaceSystem, "system:controller:bootstrap-signer", []rbacv1.Subject{account("bootstrap-signer")}, can("read", "core", "secrets"))
	d.local(metav1.NamespaceSystem, "system:controller:token-cleaner", []rbacv1.Subject{account("token-cleaner")}, can("read delete", "core", "secrets"), telling())
	d.local(metav1.NamespacePublic, "system:controller:bootstrap-signer", []rbacv1.Subject{account("bootstrap-signer")},
		can("read", "core", "configmaps"), can("update", "core", "configmaps", "cluster-info"), telling())
}
