package controllers

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	mirroringManager = "endpointslicemirroring-controller.k8s.io"
	// leaderAnnotation is set on Endpoints used as a lock by older leader election clients.
	leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"
)

// endpointSliceMirroringController mirrors Endpoints that users maintain, for services without a
// selector, to EndpointSlices.
type endpointSliceMirroringController struct {
	Config
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    discoverylisters.EndpointSliceLister
}

func newEndpointSliceMirroringController(c Config) ([]*controller, error) {
	core, discovery := c.Informers.Core().V1(), c.Informers.Discovery().V1()
	m := &endpointSliceMirroringController{Config: c, services: core.Services().Lister(),
		endpoints: core.Endpoints().Lister(), slices: discovery.EndpointSlices().Lister()}
	ctrl := c.newController(m.sync)
	if err := ctrl.watch(core.Services().Informer(), objectKey); err != nil {
		return nil, err
	}
	if err := ctrl.watch(core.Endpoints().Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(discovery.EndpointSlices().Informer(), func(obj any) []string {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok &&
			slice.Labels[discoveryv1.LabelManagedBy] == mirroringManager {
			return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}
		}
		return nil
	})
}

func (m *endpointSliceMirroringController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	current, err := m.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: mirroringManager,
	}))
	if err != nil {
		return 0, err
	}
	desired := map[string]*discoveryv1.EndpointSlice{}
	svc, err := m.services.Services(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	ep, epErr := m.endpoints.Endpoints(namespace).Get(name)
	if epErr != nil && !apierrors.IsNotFound(epErr) {
		return 0, epErr
	}
	if err == nil && epErr == nil && shouldMirror(svc, ep) {
		desired = desiredMirrorSlices(ep)
	}
	if err := m.reconcileSlices(ctx, namespace, current, desired); err != nil {
		return 0, fmt.Errorf("mirror endpoints %s: %w", key, err)
	}
	return 0, nil
}

// shouldMirror reports whether no other component maintains EndpointSlices for these Endpoints.
func shouldMirror(svc *corev1.Service,
	ep *corev1.Endpoints) bool { //nolint:staticcheck // served as long as upstream serves it
	_, isLock := ep.Annotations[leaderAnnotation]
	// the API server maintains its EndpointSlices
	own := svc.Namespace == metav1.NamespaceDefault && svc.Name == "kubernetes"
	return len(svc.Spec.Selector) == 0 && svc.DeletionTimestamp == nil && ep.DeletionTimestamp == nil &&
		ep.Labels[discoveryv1.LabelSkipMirror] != "true" && !isLock && !own
}

// desiredMirrorSlices returns the slices for Endpoints by name: one or more for each subset and IP
// family.
func desiredMirrorSlices(ep *corev1.Endpoints) map[string]*discoveryv1.EndpointSlice { //nolint:staticcheck // as above
	out := map[string]*discoveryv1.EndpointSlice{}
	for i := range ep.Subsets {
		subset := &ep.Subsets[i]
		byFamily := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
		left := maxAddresses
		add := func(all []corev1.EndpointAddress, ready bool) {
			for i := range all {
				a, err := netip.ParseAddr(all[i].IP)
				if err != nil || left == 0 {
					continue
				}
				left--
				family := discoveryv1.AddressTypeIPv4
				if a.Is6() {
					family = discoveryv1.AddressTypeIPv6
				}
				byFamily[family] = append(byFamily[family], mirrorEndpoint(&all[i], ready))
			}
		}
		add(subset.Addresses, true)
		add(subset.NotReadyAddresses, false)
		for family, endpoints := range byFamily {
			for n := 0; len(endpoints) > 0; n++ {
				take := min(maxEndpointsPerSlice, len(endpoints))
				slice := newMirrorSlice(ep, family, i, n)
				slice.Endpoints, endpoints = endpoints[:take], endpoints[take:]
				out[slice.Name] = slice
			}
		}
	}
	return out
}

func mirrorEndpoint(a *corev1.EndpointAddress, ready bool) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{Addresses: []string{a.IP}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		TargetRef: a.TargetRef, NodeName: a.NodeName}
	if a.Hostname != "" {
		out.Hostname = &a.Hostname
	}
	return out
}

//nolint:staticcheck // as above
func newMirrorSlice(ep *corev1.Endpoints, family discoveryv1.AddressType, subset, n int) *discoveryv1.EndpointSlice {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s %s %d %d", ep.UID, family, subset, n)
	yes := true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ep.Namespace, Name: ep.Name + "-" + strconv.FormatUint(uint64(h.Sum32()), 36),
			Labels: maps.Clone(ep.Labels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Endpoints", Name: ep.Name, UID: ep.UID,
				Controller: &yes, BlockOwnerDeletion: &yes}},
		},
		AddressType: family,
	}
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = ep.Name, mirroringManager
	ports := ep.Subsets[subset].Ports
	for i := range ports {
		p := &ports[i]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol,
			AppProtocol: p.AppProtocol})
	}
	return slice
}
