package control

// controllers are what works by itself while the server runs.
func (a *Assembly) controllers() []Controller {
	return append([]Controller{
		{Name: "namespaces", Run: a.runSystemNamespaces},
		{Name: "clusterrole-aggregation-controller", Run: a.aggregateRoles},
		{Name: "bootstrap-tokens", Run: a.runTokenCleaner},
		{Name: "kubernetes-service", Run: a.runKubernetesService},
		{Name: "service-repair", LeaderElected: true, Run: a.runServiceRepair},
	}, a.schedulerAndControllers()...)
}

// ControllerNames are the names that Config.Off knows.
func ControllerNames() []string {
	var names []string
	for _, p := range (&Assembly{}).controllers() {
		names = append(names, p.Name)
	}
	return names
}
