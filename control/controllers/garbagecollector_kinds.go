package controllers

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"berth/control/dynamickinds"
)

// watchAll discovers all collectable resources and starts informers for them.
func (g *garbageCollector) watchAll(ctx context.Context, factory metadatainformer.SharedInformerFactory,
	ctrl *controller) error {
	lists, err := g.Client.Discovery().ServerPreferredResources()
	if err != nil && !onlyAggregated(err) {
		return fmt.Errorf("discover resources: %w", err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return fmt.Errorf("discover resources: %w", err)
		}
		for _, r := range list.APIResources {
			if !collectable(r) || !g.builtIn(gv.WithKind(r.Kind)) {
				continue
			}
			res := gcResource{gv.WithResource(r.Name), r.Namespaced}
			g.setKind(schema.GroupKind{Group: gv.Group, Kind: r.Kind}, res)
			informer, err := g.informer(factory, res.GroupVersionResource)
			if err != nil {
				return fmt.Errorf("watch %s: %w", r.Name, err)
			}
			if err := ctrl.addEventHandler(informer, g.graph.eventHandler(res)); err != nil {
				return fmt.Errorf("watch %s: %w", r.Name, err)
			}
		}
	}
	if g.CustomResources != nil {
		res := gcResource{schema.GroupVersionResource{Group: apiextensionsGroup, Version: "v1",
			Resource: "customresourcedefinitions"}, false}
		g.setKind(schema.GroupKind{Group: apiextensionsGroup, Kind: "CustomResourceDefinition"}, res)
		if err := ctrl.addEventHandler(g.CustomResources.Definitions(), g.graph.eventHandler(res)); err != nil {
			return fmt.Errorf("watch %s: %w", res.Resource, err)
		}
	}
	if g.AggregatedKinds != nil {
		res := gcResource{schema.GroupVersionResource{Group: apiregistrationGroup, Version: "v1",
			Resource: "apiservices"}, false}
		g.setKind(schema.GroupKind{Group: apiregistrationGroup, Kind: "APIService"}, res)
		if err := ctrl.addEventHandler(g.AggregatedKinds.APIServices(), g.graph.eventHandler(res)); err != nil {
			return fmt.Errorf("watch %s: %w", res.Resource, err)
		}
	}
	factory.Start(ctx.Done())
	g.StartInformers()
	return nil
}

// onlyAggregated reports whether discovery failed only for groups of extension API servers. These must not keep the
// garbage collector from its work on all others.
func onlyAggregated(err error) bool {
	failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err)
	for gv := range failed {
		if clientscheme.Scheme.IsVersionRegistered(gv) {
			return false
		}
	}
	return ok
}

const (
	apiextensionsGroup   = "apiextensions.k8s.io"
	apiregistrationGroup = "apiregistration.k8s.io"
)

// builtIn reports whether a kind is watched through the API. CustomResources and AggregatedKinds have the others.
func (g *garbageCollector) builtIn(kind schema.GroupVersionKind) bool {
	return g.CustomResources == nil || clientscheme.Scheme.Recognizes(kind)
}

func (g *garbageCollector) setKind(kind schema.GroupKind, of gcResource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kinds[kind] = of
}

// resourceOf returns the resource of a kind, if it is known.
func (g *garbageCollector) resourceOf(kind schema.GroupKind) (gcResource, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of, known := g.kinds[kind]
	return of, known
}

// addCustomResource adds a kind of custom resources. Objects with an owner of that kind are checked
// again: until now the kind was unknown, so they were kept.
func (g *garbageCollector) addCustomResource(r metav1.APIResource) cache.ResourceEventHandler {
	res := gcResource{schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Name}, r.Namespaced}
	kind := schema.GroupKind{Group: r.Group, Kind: r.Kind}
	g.setKind(kind, res)
	g.graph.enqueueOwnedBy(kind)
	return g.graph.eventHandler(res)
}

// removeCustomResource removes the objects of a kind that is no longer served. Their dependents are
// collected: the objects have been deleted with the definition. The kind stays known, so that the
// API server is asked for an owner and answers that there is none.
func (g *garbageCollector) removeCustomResource(r metav1.APIResource) {
	g.graph.removeResource(schema.GroupResource{Group: r.Group, Resource: r.Name})
}

// followAggregatedKinds adds the kinds of extension API servers, now and later, until stop is called.
func (g *garbageCollector) followAggregatedKinds(ctx context.Context) (stop func()) {
	if g.AggregatedKinds == nil {
		return func() {}
	}
	return followKinds(ctx, g.AggregatedKinds, func(r metav1.APIResource) cache.ResourceEventHandler {
		g.mu.Lock()
		g.aggregated[r.Group] = true
		g.mu.Unlock()
		return g.addCustomResource(r)
	}, g.removeAggregatedKind)
}

// removeAggregatedKind forgets a kind that is no longer served. Its objects exist as before, so their dependents stay:
// an owner of an unknown kind counts as existing.
func (g *garbageCollector) removeAggregatedKind(r metav1.APIResource) {
	g.mu.Lock()
	delete(g.kinds, schema.GroupKind{Group: r.Group, Kind: r.Kind})
	g.mu.Unlock()
	g.graph.removeResource(schema.GroupResource{Group: r.Group, Resource: r.Name})
}

// notServed reports whether an error means that the kind of an extension API server is not served. It does not mean
// that the object does not exist.
func (g *garbageCollector) notServed(group string, err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.aggregated[group] && apierrors.IsNotFound(err) &&
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// sharedInformers are the resources of which other components of the server watch complete objects. The garbage
// collector uses the same informers, because a second, metadata-only informer would need more memory in total. A test
// of package control compares the list with the informers of a server.
var sharedInformers = map[schema.GroupResource]bool{
	{Resource: "configmaps"}:             true,
	{Resource: "endpoints"}:              true,
	{Resource: "limitranges"}:            true,
	{Resource: "namespaces"}:             true,
	{Resource: "nodes"}:                  true,
	{Resource: "persistentvolumeclaims"}: true,
	{Resource: "persistentvolumes"}:      true,
	{Resource: "pods"}:                   true,
	{Resource: "replicationcontrollers"}: true,
	{Resource: "resourcequotas"}:         true,
	{Resource: "secrets"}:                true,
	{Resource: "serviceaccounts"}:        true,
	{Resource: "services"}:               true,

	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"}:         true,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicybindings"}:   true,
	{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:     true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"}:       true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicybindings"}: true,
	{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}:   true,

	{Group: "apps", Resource: "controllerrevisions"}:                                 true,
	{Group: "apps", Resource: "daemonsets"}:                                          true,
	{Group: "apps", Resource: "deployments"}:                                         true,
	{Group: "apps", Resource: "replicasets"}:                                         true,
	{Group: "apps", Resource: "statefulsets"}:                                        true,
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}:                     true,
	{Group: "batch", Resource: "cronjobs"}:                                           true,
	{Group: "batch", Resource: "jobs"}:                                               true,
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}:           true,
	{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:                  true,
	{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:               true,
	{Group: "coordination.k8s.io", Resource: "leases"}:                               true,
	{Group: "discovery.k8s.io", Resource: "endpointslices"}:                          true,
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}:                 true,
	{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}: true,
	{Group: "networking.k8s.io", Resource: "ingressclasses"}:                         true,
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:                        true,
	{Group: "node.k8s.io", Resource: "runtimeclasses"}:                               true,
	{Group: "policy", Resource: "poddisruptionbudgets"}:                              true,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}:            true,
	{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}:                   true,
	{Group: "rbac.authorization.k8s.io", Resource: "rolebindings"}:                   true,
	{Group: "rbac.authorization.k8s.io", Resource: "roles"}:                          true,
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:                        true,
	{Group: "storage.k8s.io", Resource: "storageclasses"}:                            true,
	{Group: "storage.k8s.io", Resource: "csidrivers"}:                                true,
	{Group: "storage.k8s.io", Resource: "csinodes"}:                                  true,
	{Group: "storage.k8s.io", Resource: "csistoragecapacities"}:                      true,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}:                         true,
	{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}:                   true,
	{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"}:         true,
}

// informer returns the shared informer of a resource, or a metadata-only one.
func (g *garbageCollector) informer(factory metadatainformer.SharedInformerFactory,
	of schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	if sharedInformers[of.GroupResource()] {
		shared, err := g.Informers.ForResource(of)
		if err != nil {
			return nil, err
		}
		return shared.Informer(), nil
	}
	informer := factory.ForResource(of).Informer()
	return informer, informer.SetTransform(dynamickinds.TrimMetadata)
}

// collectable excludes events, which are numerous, short-lived and have no owners.
func collectable(r metav1.APIResource) bool {
	if r.Name == "events" {
		return false
	}
	for _, verb := range []string{"list", "watch", "get", "delete"} {
		if !slices.Contains(r.Verbs, verb) {
			return false
		}
	}
	return true
}
