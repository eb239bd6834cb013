package customresources

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Priorities of custom resources in discovery, as upstream.
const (
	groupPriority   = 1000
	versionPriority = 100
)

// groupDiscovery publishes the groups of definitions at /apis, in both forms, and serves the paths
// below it.
type groupDiscovery struct {
	definitions *definitions
	groups      discovery.GroupManager
	aggregated  aggregated.ResourceManager
	// builtIn reports whether a group has kinds without a definition. Its entry in groups is not changed.
	builtIn func(group string) bool
	queue   workqueue.TypedRateLimitingInterface[string]
	// published holds the versions in aggregated by group. Only the worker uses it.
	published map[string]map[string]bool
}

// watch queues the group of each definition that changes.
func (g *groupDiscovery) watch() (cache.ResourceEventHandlerRegistration, error) {
	enqueue := func(obj any) {
		if crd := definitionOf(obj); crd != nil {
			g.queue.Add(crd.Spec.Group)
		}
	}
	//nolint:wrapcheck // does not fail: the informer has not stopped
	return g.definitions.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
	})
}

// run publishes the groups of all definitions, calls published, and then follows changes until ctx is
// done.
func (g *groupDiscovery) run(ctx context.Context, published func()) {
	stop := context.AfterFunc(ctx, g.queue.ShutDown)
	defer stop()
	groups := map[string]bool{}
	for _, crd := range g.definitions.established() {
		groups[crd.Spec.Group] = true
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		g.sync(group)
	}
	published()
	for {
		group, closed := g.queue.Get()
		if closed {
			return
		}
		g.sync(group)
		g.queue.Done(group)
	}
}

// sync publishes the current state of a group.
func (g *groupDiscovery) sync(name string) {
	group := g.group(name)
	versions := map[string]bool{}
	for _, v := range group.Versions {
		resources := g.resources(schema.GroupVersion{Group: name, Version: v.Version})
		list, err := endpoints.ConvertGroupVersionIntoToDiscovery(resources)
		if err != nil {
			continue // only for a list with a resource after its subresource
		}
		versions[v.Version] = true
		g.aggregated.AddGroupVersion(name, apidiscoveryv2.APIVersionDiscovery{
			Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Version: v.Version, Resources: list,
		})
		g.aggregated.SetGroupVersionPriority(metav1.GroupVersion{Group: name, Version: v.Version},
			groupPriority, versionPriority)
	}
	for v := range g.published[name] {
		if !versions[v] {
			g.aggregated.RemoveGroupVersion(metav1.GroupVersion{Group: name, Version: v})
		}
	}
	g.published[name] = versions
	if len(versions) == 0 {
		delete(g.published, name)
	}
	switch {
	case g.builtIn(name):
	case len(versions) == 0:
		g.groups.RemoveGroup(name)
	default:
		g.groups.AddGroup(group)
	}
}

// group returns a group with its served versions, the preferred one first.
func (g *groupDiscovery) group(name string) metav1.APIGroup {
	out := metav1.APIGroup{Name: name}
	seen := map[string]bool{}
	for _, crd := range g.definitions.established() {
		if crd.Spec.Group != name {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Served && !seen[v.Name] {
				seen[v.Name] = true
				out.Versions = append(out.Versions,
					metav1.GroupVersionForDiscovery{GroupVersion: name + "/" + v.Name, Version: v.Name})
			}
		}
	}
	slices.SortFunc(out.Versions, func(a, b metav1.GroupVersionForDiscovery) int {
		return version.CompareKubeAwareVersionStrings(b.Version, a.Version)
	})
	if len(out.Versions) > 0 {
		out.PreferredVersion = out.Versions[0]
	}
	return out
}

// resources returns the resources of a group version, each followed by its subresources.
func (g *groupDiscovery) resources(gv schema.GroupVersion) (out []metav1.APIResource) {
	all := g.definitions.established()
	slices.SortFunc(all, func(a, b *apiextensionsv1.CustomResourceDefinition) int {
		return strings.Compare(a.Name, b.Name)
	})
	for _, crd := range all {
		if crd.Spec.Group == gv.Group && apihelpers.HasServedCRDVersion(crd, gv.Version) {
			out = append(out, resourcesOf(crd, gv)...)
		}
	}
	return out
}

// resourcesOf returns the resource of a definition and its subresources.
func resourcesOf(crd *apiextensionsv1.CustomResourceDefinition, gv schema.GroupVersion) []metav1.APIResource {
	names := crd.Status.AcceptedNames
	main := metav1.APIResource{
		Name: names.Plural, SingularName: names.Singular, Kind: names.Kind, Group: gv.Group, Version: gv.Version,
		Namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		ShortNames: names.ShortNames, Categories: names.Categories,
		Verbs: metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
	}
	if apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating) {
		main.Verbs = metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	if stored, err := apihelpers.GetCRDStorageVersion(crd); err == nil {
		main.StorageVersionHash = discovery.StorageVersionHash(gv.Group, stored, crd.Spec.Names.Kind)
	}
	out := []metav1.APIResource{main}
	has, err := apihelpers.GetSubresourcesForVersion(crd, gv.Version)
	if err != nil || has == nil {
		return out
	}
	verbs := metav1.Verbs{"get", "patch", "update"}
	if has.Status != nil {
		out = append(out, metav1.APIResource{Name: main.Name + "/status", Namespaced: main.Namespaced, Kind: main.Kind,
			Group: gv.Group, Version: gv.Version, Verbs: verbs})
	}
	if has.Scale != nil {
		scale := autoscalingv1.SchemeGroupVersion.WithKind("Scale")
		out = append(out, metav1.APIResource{Name: main.Name + "/scale", Namespaced: main.Namespaced, Kind: scale.Kind,
			Group: scale.Group, Version: scale.Version, Verbs: verbs})
	}
	return out
}

// handler returns the handler of /apis/GROUP or /apis/GROUP/VERSION, or nil if there is no such group.
func (g *groupDiscovery) handler(path string) http.Handler {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch len(parts) {
	case 2:
		if group := g.group(parts[1]); len(group.Versions) > 0 {
			return discovery.NewAPIGroupHandler(apiextensionsserver.Codecs, group)
		}
	case 3:
		gv := schema.GroupVersion{Group: parts[1], Version: parts[2]}
		resources := g.resources(gv)
		if len(resources) == 0 {
			return nil
		}
		for i := range resources { // the group version of the list is that of its resources
			if resources[i].Group == gv.Group {
				resources[i].Group, resources[i].Version = "", ""
			}
		}
		return discovery.NewAPIVersionHandler(apiextensionsserver.Codecs, gv,
			discovery.APIResourceListerFunc(func() []metav1.APIResource { return resources }))
	}
	return nil
}
