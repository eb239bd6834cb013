package authz

import rbacv1 "k8s.io/api/rbac/v1"

// users adds the user-facing roles: cluster-admin, admin, edit and view.
func (d *Defaults) users() {
	d.role("cluster-admin", resourceRule("*", "*", "*"),
		rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{
			"*"}})
	d.bind("cluster-admin", group("system:masters"))

	d.aggregatingRole("admin", "")
	d.aggregatingRole("edit", "admin")
	d.aggregatingRole("view", "edit")

	d.aggregatedRole("system:aggregate-to-admin", "admin",
		resourceRule("create", "authorization", "localsubjectaccessreviews"),
		resourceRule("read write", "rbac.authorization", "roles rolebindings"),
	)
	d.aggregatedRole("system:aggregate-to-edit", "edit",
		resourceRule("read", "core", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
		resourceRule("impersonate", "core", "serviceaccounts"),
		resourceRule("write", "core", "pods pods/attach pods/exec pods/portforward pods/proxy"),
		resourceRule("create", "core", "pods/eviction serviceaccounts/token"),
		resourceRule("patch update", "core", "pods/resize"),
		resourceRule("write", "core", "configmaps persistentvolumeclaims replicationcontrollers "+
			"replicationcontrollers/scale secrets serviceaccounts services services/proxy"),
		resourceRule("write", "core events", "events"),
		resourceRule("write", "apps", "daemonsets deployments deployments/rollback deployments/scale replicasets "+
			"replicasets/scale statefulsets statefulsets/scale"),
		resourceRule("write", "autoscaling", "horizontalpodautoscalers"),
		resourceRule("write", "batch", "cronjobs jobs"),
		resourceRule("write", "policy", "poddisruptionbudgets"),
		resourceRule("write", "networking", "ingresses networkpolicies"),
		resourceRule("write", "resource", "resourceclaims resourceclaimtemplates"),
		resourceRule("read write", "coordination", "leases"),
	)
	d.aggregatedRole("system:aggregate-to-view", "view",
		resourceRule("read", "core", "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods "+
			"replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status"),
		resourceRule("read", "core", "bindings limitranges namespaces/status pods/log pods/status "+
			"pods/timeline pods/why replicationcontrollers/status resourcequotas resourcequotas/status"),
		resourceRule("read", "core", "namespaces"),
		resourceRule("read", "core events", "events"),
		resourceRule("read", "discovery", "endpointslices"),
		resourceRule("read", "apps", "controllerrevisions daemonsets daemonsets/status deployments deployments/scale "+
			"deployments/status replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale "+
			"statefulsets/status"),
		resourceRule("read", "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
		resourceRule("read", "batch", "cronjobs cronjobs/status jobs jobs/status"),
		resourceRule("read", "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
		resourceRule("read", "networking", "ingresses ingresses/status networkpolicies"),
		resourceRule("read", "resource", "resourceclaims resourceclaims/status resourceclaimtemplates"),
	)
	d.aggregatedRole("system:aggregated-metrics-reader", "admin edit view",
		resourceRule("read", "metrics", "nodes pods"))
}
