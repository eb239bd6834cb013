package authz

import rbacv1 "k8s.io/api/rbac/v1"

// controllers are the roles of upstream's controllers, for clusters where its
// controller manager runs them with a service account for each. berth's own
// controllers act as the server.
func (d *Defaults) controllers() {
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"certificate-controller": {
			can("read delete", "certificates", "certificatesigningrequests"),
			can("update", "certificates", "certificatesigningrequests/approval certificatesigningrequests/status"),
			can("approve sign", "certificates", "signers", "kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving", "kubernetes.io/legacy-unknown"),
			can("create", "authorization", "subjectaccessreviews"),
		},
		"clusterrole-aggregation-controller": {can("escalate get list patch update watch", "rbac.authorization", "clusterroles")},
		"cronjob-controller":                 {can("read update", "batch", "cronjobs"), can("read write", "batch", "jobs"), can("update", "batch", "cronjobs/finalizers cronjobs/status"), can("list watch delete", "core", "pods")},
		"daemon-set-controller": {
			can("read", "apps", "daemonsets"), can("update", "apps", "daemonsets/finalizers daemonsets/status"), can("read", "core", "nodes"),
			can("read create delete patch", "core", "pods"), can("create", "core", "pods/binding"), can("read create delete patch update", "apps", "controllerrevisions"),
		},
		"deployment-controller": {
			can("read update", "apps", "deployments"), can("update", "apps", "deployments/finalizers deployments/status"),
			can("read create delete patch update", "apps", "replicasets"), can("read update", "core", "pods"),
		},
		"device-taint-eviction-controller": {
			can("read delete", "core", "pods"), can("patch update", "core", "pods/status"), can("read", "core", "nodes"),
			can("read", "resource", "deviceclasses devicetaintrules resourceclaims resourceslices"), can("patch update", "resource", "devicetaintrules/status"),
		},
		"disruption-controller": {
			can("read", "apps", "deployments replicasets statefulsets"), can("read", "core", "pods replicationcontrollers"), can("patch update", "core", "pods/status"),
			can("read", "policy", "poddisruptionbudgets"), can("update", "policy", "poddisruptionbudgets/status"), can("get", "*", "*/scale"),
		},
		"endpoint-controller":               {can("read", "core", "pods services"), can("read create delete update", "core", "endpoints"), can("create", "core", "endpoints/restricted")},
		"endpointslice-controller":          {can("read", "core", "nodes pods services"), can("update", "core", "services/finalizers"), can("read create delete update", "discovery", "endpointslices"), can("create", "discovery", "endpointslices/restricted")},
		"endpointslicemirroring-controller": {can("read", "core", "endpoints services"), can("update", "core", "endpoints/finalizers services/finalizers"), can("read create delete update", "discovery", "endpointslices"), can("create", "discovery", "endpointslices/restricted")},
		"ephemeral-volume-controller":       {can("read", "core", "pods"), can("update", "core", "pods/finalizers"), can("read create", "core", "persistentvolumeclaims")},
		"generic-garbage-collector":         {can("delete get list patch update watch", "*", "*")},
		"horizontal-pod-autoscaler": {
			can("read", "autoscaling", "horizontalpodautoscalers"), can("update", "autoscaling", "horizontalpodautoscalers/status"), can("get update", "*", "*/scale"),
			can("list watch", "core", "pods"), can("list watch", "metrics", "pods"), can("read", "custom.metrics.k8s.io external.metrics.k8s.io", "*"),
		},
		"job-controller":            {can("read patch update", "batch", "jobs"), can("update", "batch", "jobs/finalizers jobs/status"), can("read create delete patch", "core", "pods")},
		"namespace-controller":      {can("delete get list watch", "core", "namespaces"), can("update", "core", "namespaces/finalize namespaces/status"), can("read delete deletecollection", "*", "*")},
		"node-controller":           {can("delete get list patch update watch", "core", "nodes"), can("patch update", "core", "nodes/status"), can("delete get list watch", "core", "pods"), can("patch update", "core", "pods/status"), can("read", "coordination", "leases")},
		"persistent-volume-binder":  {can("read create delete update", "core", "persistentvolumes"), can("update", "core", "persistentvolumeclaims/status persistentvolumes/status"), can("read update", "core", "persistentvolumeclaims"), can("read create delete", "core", "pods"), can("read", "storage", "storageclasses"), can("read", "core", "nodes"), can("watch", "core", "events")},
		"pod-garbage-collector":     {can("delete list watch", "core", "pods"), can("read", "core", "nodes"), can("patch update", "core", "pods/status")},
		"pvc-protection-controller": {can("read update", "core", "persistentvolumeclaims"), can("update", "core", "persistentvolumeclaims/status"), can("read", "core", "pods")},
		"pv-protection-controller":  {can("read update", "core", "persistentvolumes")},
		"replicaset-controller":     {can("read update", "apps", "replicasets"), can("update", "apps", "replicasets/finalizers replicasets/status"), can("read create delete patch", "core", "pods")},
		"replication-controller":    {can("read update", "core", "replicationcontrollers"), can("update", "core", "replicationcontrollers/finalizers replicationcontrollers/status"), can("read create delete patch", "core", "pods")},
		"resource-claim-controller": {
			can("read", "core", "pods"), can("update", "core", "pods/finalizers"), can("patch update", "core", "pods/status"),
			can("read", "resource", "resourceclaimtemplates"), can("read create delete patch update", "resource", "resourceclaims"),
			can("patch update", "resource", "resourceclaims/binding resourceclaims/status"),
		},
		"resourcequota-controller":      {can("list watch", "*", "*"), can("update", "core", "resourcequotas/status")},
		"root-ca-cert-publisher":        {can("create update", "core", "configmaps")},
		"service-account-controller":    {can("create", "core", "serviceaccounts")},
		"statefulset-controller":        {can("read", "core", "pods"), can("read update", "apps", "statefulsets"), can("update", "apps", "statefulsets/finalizers statefulsets/status"), can("read create delete patch update", "core", "pods"), can("read create delete patch update", "apps", "controllerrevisions"), can("read create delete update", "core", "persistentvolumeclaims"), can("update", "core", "pods/finalizers")},
		"taint-eviction-controller":     {can("read delete", "core", "pods"), can("get", "core", "nodes"), can("patch update", "core", "pods/status")},
		"ttl-after-finished-controller": {can("read delete", "batch", "jobs")},
		"ttl-controller":                {can("read patch update", "core", "nodes")},
	} {
		d.role("system:controller:"+name, append(rules, telling())...)
		d.bind("system:controller:"+name, account(name))
	}
}
