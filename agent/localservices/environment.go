package localservices

import (
	"maps"

	"berth/agent/plan"
	"berth/agent/source"
	"berth/podspec"
	"berth/services"
)

// withEnvironment adds the environment variables that Services define to the objects of a snapshot, for
// the namespaces of its pods.
func withEnvironment(snap source.Snapshot, got map[services.Name]Allocation) source.Snapshot {
	if len(got) == 0 {
		return snap
	}
	byNamespace := map[string]map[string]*services.Service{}
	for _, svc := range snap.Services {
		a, ok := got[nameOf(svc)]
		if !ok {
			continue
		}
		if byNamespace[svc.Namespace] == nil {
			byNamespace[svc.Namespace] = map[string]*services.Service{}
		}
		byNamespace[svc.Namespace][svc.Name] = compact(svc, a)
	}
	kubernetes := byNamespace[services.Kubernetes.Namespace][services.Kubernetes.Name]
	objects := maps.Clone(snap.Objects)
	if objects == nil {
		objects = map[source.ObjectKey]plan.Object{}
	}
	for _, pod := range snap.Pods {
		key := source.KeyOf(pod, plan.Ref{Kind: plan.Services, Name: podspec.LinkedFileServices})
		if _, done := objects[key]; done {
			continue
		}
		if env, version := services.Environment(byNamespace[pod.Namespace], kubernetes); len(env) > 0 {
			objects[key] = plan.Object{Env: env, Version: plan.Version{Version: version}}
		}
	}
	snap.Objects = objects
	return snap
}
