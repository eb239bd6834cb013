package authz

import rbacv1 "k8s.io/api/rbac/v1"

// users are the roles that people are given: cluster-admin, admin, edit, view.
func (d *Defaults) users() {
	d.role("cluster-admin", can("*", "*", "*"), rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})
	d.bind("cluster-admin", group("system:masters"))

	d.whole("admin", "")
	d.whole("edit", "admin")
	d.whole("view", "edit")

	d.part("system:aggregate-to-admin", "admin",
		can("create", "authorization", "localsubjectaccessreviews"),
		can("read write", "rbac.authorization", "roles rolebindings"),
	)
	d.part("system:aggregate-to-edit", "edit",
		can("read", "core", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
		can("impersonate", "core", "serviceaccounts"),
		can("write", "core", "pods pods/attach pods/exec pods/portforward pods/proxy"),
		can("create", "core", "pods/eviction serviceaccounts/token"),
		can("patch update", "core", "pods/resize"),
		can("write", "core", "configmaps persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets serviceaccounts services services/proxy"),
		can("write", "core events", "events"),
		can("write", "apps", "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets statefulsets/scale"),
		can("write", "autoscaling", "horizontalpodautoscalers"),
		can("write", "batch", "cronjobs jobs"),
		can("write", "policy", "poddisruptionbudgets"),
		can("write", "networking", "ingresses networkpolicies"),
		can("write", "resource", "resourceclaims resourceclaimtemplates"),
		can("read write", "coordination", "leases"),
	)
	d.part("system:aggregate-to-view", "view",
		can("read", "core", "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status"),
		can("read", "core", "bindings limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas resourcequotas/status"),
		can("read", "core", "namespaces"),
		can("read", "core events", "events"),
		can("read", "discovery", "endpointslices"),
		can("read", "apps", "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status"),
		can("read", "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
		can("read", "batch", "cronjobs cronjobs/status jobs jobs/status"),
		can("read", "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
		can("read", "networking", "ingresses ingresses/status networkpolicies"),
		can("read", "resource", "resourceclaims resourceclaims/status resourceclaimtemplates"),
	)
	d.part("system:aggregated-metrics-reader", "admin edit view", can("read", "metrics", "nodes pods"))
}
