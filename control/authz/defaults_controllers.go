package authz

import rbacv1 "k8s.io/api/rbac/v1"

// controllers adds the roles of upstream's controllers. The server's own controllers and those of
// kube-controller-manager use them with individual service accounts.
func (d *Defaults) controllers() {
	for _, roles := range []map[string][]rbacv1.PolicyRule{
		workloadControllers(), nodeControllers(), networkAndStorageControllers(), clusterControllers(),
	} {
		for name, rules := range roles {
			d.role("system:controller:"+name, append(rules, eventsRule())...)
			d.bind("system:controller:"+name, account(name))
		}
	}
}

// workloadControllers returns the rules of the controllers that manage pods.
func workloadControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"cronjob-controller": {resourceRule("read update", "batch", "cronjobs"), resourceRule("read write",
			"batch", "jobs"), resourceRule("update", "batch", "cronjobs/finalizers cronjobs/status"),
			resourceRule("list watch delete", "core", "pods")},
		"daemon-set-controller": {
			resourceRule("read", "apps", "daemonsets"), resourceRule("update", "apps",
				"daemonsets/finalizers daemonsets/status"), resourceRule("read", "core", "nodes"),
			resourceRule("read create delete patch", "core", "pods"), resourceRule("create", "core", "pods/binding"),
			resourceRule("read create delete patch update", "apps", "controllerrevisions"),
		},
		"deployment-controller": {
			resourceRule("read update", "apps", "deployments"), resourceRule("update", "apps",
				"deployments/finalizers deployments/status"),
			resourceRule("read create delete patch update", "apps", "replicasets"),
			resourceRule("read update", "core", "pods"),
		},
		"disruption-controller": {
			resourceRule("read", "apps", "deployments replicasets statefulsets"), resourceRule("read", "core",
				"pods replicationcontrollers"), resourceRule("patch update", "core", "pods/status"),
			resourceRule("read", "policy", "poddisruptionbudgets"), resourceRule("update", "policy",
				"poddisruptionbudgets/status"), resourceRule("get", "*", "*/scale"),
		},
		"horizontal-pod-autoscaler": {
			resourceRule("read", "autoscaling", "horizontalpodautoscalers"), resourceRule("update", "autoscaling",
				"horizontalpodautoscalers/status"), resourceRule("get update", "*", "*/scale"),
			resourceRule("list watch", "core", "pods"), resourceRule("list watch", "metrics", "pods"),
			resourceRule("read",
				"custom.metrics.k8s.io external.metrics.k8s.io", "*"),
		},
		"job-controller": {resourceRule("read patch update", "batch", "jobs"), resourceRule("update", "batch",
			"jobs/finalizers jobs/status"), resourceRule("read create delete patch", "core", "pods")},
		"replicaset-controller": {resourceRule("read update", "apps", "replicasets"), resourceRule("update", "apps",
			"replicasets/finalizers replicasets/status"), resourceRule("read create delete patch", "core", "pods")},
		"replication-controller": {resourceRule("read update", "core", "replicationcontrollers"), resourceRule("update",
			"core", "replicationcontrollers/finalizers replicationcontrollers/status"),
			resourceRule("read create delete patch",
				"core", "pods")},
		"statefulset-controller": {resourceRule("read", "core", "pods"), resourceRule("read update", "apps",
			"statefulsets"), resourceRule("update", "apps", "statefulsets/finalizers statefulsets/status"),
			resourceRule("read create delete patch update", "core", "pods"),
			resourceRule("read create delete patch update",
				"apps", "controllerrevisions"), resourceRule("read create delete update", "core",
				"persistentvolumeclaims"),
			resourceRule("update", "core", "pods/finalizers")},
		"ttl-after-finished-controller": {resourceRule("read delete", "batch", "jobs")},
	}
}

// nodeControllers returns the rules of the controllers of nodes, of devices and of pods on nodes.
func nodeControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"device-taint-eviction-controller": {
			resourceRule("read delete", "core", "pods"), resourceRule("patch update", "core", "pods/status"),
			resourceRule("read", "core", "nodes"),
			resourceRule("read", "resource", "deviceclasses devicetaintrules resourceclaims resourceslices"),
			resourceRule("patch update", "resource", "devicetaintrules/status"),
		},
		"node-controller": {resourceRule("delete get list patch update watch", "core", "nodes"),
			resourceRule("patch update", "core", "nodes/status"), resourceRule("delete get list watch", "core", "pods"),
			resourceRule("patch update", "core", "pods/status"), resourceRule("read", "coordination", "leases")},
		"pod-garbage-collector": {resourceRule("delete list watch", "core", "pods"), resourceRule("read", "core",
			"nodes"), resourceRule("patch update", "core", "pods/status")},
		"resource-claim-controller": {
			resourceRule("read", "core", "pods"), resourceRule("update", "core", "pods/finalizers"),
			resourceRule("patch update",
				"core", "pods/status"),
			resourceRule("read", "resource", "resourceclaimtemplates"), resourceRule("read create delete patch update",
				"resource", "resourceclaims"),
			resourceRule("patch update", "resource", "resourceclaims/binding resourceclaims/status"),
		},
		"taint-eviction-controller": {resourceRule("read delete", "core", "pods"), resourceRule("get", "core", "nodes"),
			resourceRule("patch update", "core", "pods/status")},
		"ttl-controller": {resourceRule("read patch update", "core", "nodes")},
	}
}

// networkAndStorageControllers returns the rules of the controllers of Services and volumes.
func networkAndStorageControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"endpoint-controller": {resourceRule("read", "core", "pods services"),
			resourceRule("read create delete update", "core", "endpoints"), resourceRule("create", "core",
				"endpoints/restricted")},
		"endpointslice-controller": {resourceRule("read", "core", "nodes pods services"), resourceRule("update",
			"core", "services/finalizers"), resourceRule("read create delete update", "discovery", "endpointslices"),
			resourceRule("create", "discovery", "endpointslices/restricted")},
		"endpointslicemirroring-controller": {resourceRule("read", "core", "endpoints services"), resourceRule("update",
			"core", "endpoints/finalizers services/finalizers"), resourceRule("read create delete update", "discovery",
			"endpointslices"), resourceRule("create", "discovery", "endpointslices/restricted")},
		"ephemeral-volume-controller": {resourceRule("read", "core", "pods"), resourceRule("update", "core",
			"pods/finalizers"), resourceRule("read create", "core", "persistentvolumeclaims")},
		"persistent-volume-binder": {resourceRule("read create delete update", "core", "persistentvolumes"),
			resourceRule("update", "core", "persistentvolumeclaims/status persistentvolumes/status"),
			resourceRule("read update",
				"core", "persistentvolumeclaims"), resourceRule("read create delete", "core", "pods"),
			resourceRule("read",
				"storage", "storageclasses"), resourceRule("read", "core", "nodes"),
			resourceRule("watch", "core", "events")},
		"attachdetach-controller": {resourceRule("list watch", "core", "persistentvolumes persistentvolumeclaims pods"),
			resourceRule("read", "core", "nodes"), resourceRule("patch update", "core", "nodes/status"),
			resourceRule("read create delete", "storage", "volumeattachments"),
			resourceRule("read", "storage", "csidrivers csinodes")},
		"pvc-protection-controller": {resourceRule("read update", "core", "persistentvolumeclaims"),
			resourceRule("update",
				"core", "persistentvolumeclaims/status"), resourceRule("read", "core", "pods")},
		// Endpoints decide which nodes may serve a Service with policy Local. Upstream's controller does
		// not read them.
		"service-controller": {resourceRule("read", "core", "services"), resourceRule("patch update", "core",
			"services/status"), resourceRule("list watch", "core", "nodes"), resourceRule("list watch", "discovery",
			"endpointslices")},
		"pv-protection-controller": {resourceRule("read update", "core", "persistentvolumes")},
		"volumeattributesclass-protection-controller": {resourceRule("read", "core",
			"persistentvolumeclaims persistentvolumes"),
			resourceRule("read update", "storage", "volumeattributesclasses")},
	}
}

// clusterControllers returns the rules of the controllers of certificates, namespaces, quotas and garbage.
func clusterControllers() map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{
		"certificate-controller": {
			resourceRule("read delete", "certificates", "certificatesigningrequests"),
			resourceRule("update", "certificates",
				"certificatesigningrequests/approval certificatesigningrequests/status"),
			resourceRule("approve sign", "certificates", "signers", "kubernetes.io/kube-apiserver-client",
				"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving",
				"kubernetes.io/legacy-unknown"),
			resourceRule("create", "authorization", "subjectaccessreviews"),
			// The ID of the last certificate is recorded on the Node. Upstream's controller does not do that.
			resourceRule("patch", "core", "nodes"),
		},
		"podcertificaterequestcleaner": {resourceRule("read delete", "certificates", "podcertificaterequests")},
		// Upstream has no signer of pod certificates.
		"pod-certificate-signing-controller": {
			resourceRule("read", "certificates", "podcertificaterequests"),
			resourceRule("update", "certificates", "podcertificaterequests/status"),
			resourceRule("sign attest", "certificates", "signers", "berth.dev/pod-identity"),
			resourceRule("create update delete list watch", "certificates", "clustertrustbundles"),
			resourceRule("list watch", "core", "pods serviceaccounts"),
		},
		// Upstream has the sidecars of each CSI driver instead.
		"local-volume-provisioner-controller": {
			resourceRule("create delete read update", "core", "persistentvolumes"),
			resourceRule("read update", "core", "persistentvolumeclaims"),
			resourceRule("update", "core", "persistentvolumeclaims/status"),
			resourceRule("read", "core", "nodes"),
			resourceRule("get update delete", "core", "nodes/proxy"),
			resourceRule("create read", "storage", "csidrivers storageclasses"),
			resourceRule("create delete read update", "storage", "csistoragecapacities"),
		},
		"kube-apiserver-serving-clustertrustbundle-publisher": {
			resourceRule("attest", "certificates", "signers", "kubernetes.io/kube-apiserver-serving"),
			resourceRule("create update delete list watch", "certificates", "clustertrustbundles"),
		},
		"clusterrole-aggregation-controller": {resourceRule("escalate get list patch update watch",
			"rbac.authorization",
			"clusterroles")},
		"generic-garbage-collector": {resourceRule("delete get list patch update watch", "*", "*")},
		"namespace-controller": {resourceRule("delete get list watch", "core", "namespaces"), resourceRule("update",
			"core", "namespaces/finalize namespaces/status"), resourceRule("read delete deletecollection", "*", "*")},
		"resourcequota-controller": {resourceRule("list watch", "*", "*"), resourceRule("update", "core",
			"resourcequotas/status")},
		"root-ca-cert-publisher":     {resourceRule("create update", "core", "configmaps")},
		"service-account-controller": {resourceRule("create", "core", "serviceaccounts")},
		"storage-version-migrator-controller": {
			resourceRule("list patch", "*", "*"),
			resourceRule("get", "apiextensions.k8s.io", "customresourcedefinitions"),
			resourceRule("patch", "apiextensions.k8s.io", "customresourcedefinitions/status"),
			resourceRule("update", "storagemigration", "storageversionmigrations/status"),
		},
		"validatingadmissionpolicy-status-controller": {
			resourceRule("read", "admissionregistration", "validatingadmissionpolicies"),
			resourceRule("get patch update", "admissionregistration", "validatingadmissionpolicies/status"),
		},
	}
}
