package control

// parts are what works by itself while the server runs.
func (a *Assembly) parts() []Part {
	return append([]Part{
		{Name: "namespaces", Run: a.keepNamespaces},
		{Name: "clusterrole-aggregation-controller", Run: a.aggregateRoles},
		{Name: "bootstrap-tokens", Run: a.retireTokens},
		{Name: "kubernetes-service", Run: a.keepKubernetes},
		{Name: "service-repair", Alone: true, Run: a.repairServices},
	}, a.workParts()...)
}

// PartNames are the names that Config.Off knows.
func PartNames() []string {
	var names []string
	for _, p := range (&Assembly{}).parts() {
		names = append(names, p.Name)
	}
	return names
}
