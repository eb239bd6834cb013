package controllers

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	endpointSliceManager = "endpointslice-controller.k8s.io"
	maxEndpointsPerSlice = 100 // as in upstream
)

// endpointSliceController maintains the EndpointSlices of services with a selector.
type endpointSliceController struct {
	Config
	services corelisters.ServiceLister
	pods     corelisters.PodLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
}

func newEndpointSliceController(c Config) ([]*controller, error) {
	core, discovery := c.Informers.Core().V1(), c.Informers.Discovery().V1()
	s := &endpointSliceController{Config: c, services: core.Services().Lister(), pods: core.Pods().Lister(),
		nodes: core.Nodes().Lister(), slices: discovery.EndpointSlices().Lister()}
	ctrl := c.newController(s.sync)
	if err := ctrl.watch(core.Services().Informer(), objectKey); err != nil {
		return nil, err
	}
	err := ctrl.watch(discovery.EndpointSlices().Informer(), func(obj any) []string {
		if slice, ok := obj.(*discoveryv1.EndpointSlice); ok &&
			slice.Labels[discoveryv1.LabelManagedBy] == endpointSliceManager {
			return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := ctrl.addEventHandler(core.Nodes().Informer(), s.nodeZoneHandler(ctrl)); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watchServicePods(core.Pods().Informer(), s.services)
}

// nodeZoneHandler queues all services when the zone of a node changes, which is rare.
func (s *endpointSliceController) nodeZoneHandler(ctrl *controller) cache.ResourceEventHandlerFuncs {
	enqueueIfChanged := func(before, now string) {
		all, err := s.services.List(labels.Everything())
		if before == now || err != nil {
			return
		}
		for _, svc := range all {
			ctrl.queue.Add(svc.Namespace + "/" + svc.Name)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { enqueueIfChanged("", zoneOf(obj)) },
		UpdateFunc: func(before, obj any) { enqueueIfChanged(zoneOf(before), zoneOf(obj)) },
	}
}

// zoneOf returns the zone label of a node, or "".
func zoneOf(obj any) string {
	if node, ok := obj.(*corev1.Node); ok {
		return node.Labels[corev1.LabelTopologyZone]
	}
	return ""
}

// zone returns the zone of the named node, or "".
func (s *endpointSliceController) zone(node string) string {
	n, err := s.nodes.Get(node)
	if err != nil {
		return "" // the node's add event queues the services again
	}
	return zoneOf(n)
}

func (s *endpointSliceController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	current, err := s.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: endpointSliceManager,
	}))
	if err != nil {
		return 0, err
	}
	desired := map[string]*discoveryv1.EndpointSlice{}
	svc, err := s.services.Services(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return 0, err
	case svc.DeletionTimestamp == nil && len(svc.Spec.Selector) > 0 && svc.Spec.Type != corev1.ServiceTypeExternalName:
		pods, err := servicePods(svc, s.pods)
		if err != nil {
			return 0, err
		}
		desired = desiredSlices(svc, pods, s.zone)
	}
	if err := s.reconcileSlices(ctx, namespace, current, desired); err != nil {
		return 0, fmt.Errorf("update endpoint slices of %s: %w", key, err)
	}
	return 0, nil
}

// reconcileSlices creates, updates and deletes slices until the current ones equal the desired
// ones.
func (c Config) reconcileSlices(ctx context.Context, namespace string, current []*discoveryv1.EndpointSlice,
	desired map[string]*discoveryv1.EndpointSlice) error {
	client := c.Client.DiscoveryV1().EndpointSlices(namespace)
	for _, slice := range current {
		next := desired[slice.Name]
		delete(desired, slice.Name)
		switch {
		case next == nil:
			if err := ignoreNotFound(client.Delete(ctx, slice.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
					UID: &slice.UID}})); err != nil {
				return err
			}
		case equality.Semantic.DeepEqual(slice.Endpoints, next.Endpoints) && equality.Semantic.DeepEqual(slice.Ports,
			next.Ports) && equality.Semantic.DeepEqual(slice.Labels, next.Labels):
		default:
			changed := slice.DeepCopy()
			changed.Endpoints, changed.Ports, changed.Labels = next.Endpoints, next.Ports, next.Labels
			if _, err := client.Update(ctx, changed, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
				return err
			}
		}
	}
	for _, next := range desired {
		if _, err := client.Create(ctx, next, metav1.CreateOptions{}); err != nil && !ignorableCreateError(err) {
			return err
		}
	}
	return nil
}

// desiredSlices returns the slices of a service by name. The name is derived from the IP family,
// the ports and a number, so the same pods always map to the same slices.
func desiredSlices(svc *corev1.Service, pods []*corev1.Pod,
	zone func(node string) string) map[string]*discoveryv1.EndpointSlice {
	out := map[string]*discoveryv1.EndpointSlice{}
	all := groupByPorts(backends(svc, pods))
	for _, family := range ipFamilies(svc) {
		count := 0
		for _, backends := range all {
			var endpoints []discoveryv1.Endpoint
			for _, b := range backends {
				if ip := podAddress(b.pod, family); ip != "" {
					endpoints = append(endpoints, endpointOf(b, svc, ip, zone))
				}
			}
			for n := 0; len(endpoints) > 0; n++ {
				take := min(maxEndpointsPerSlice, len(endpoints))
				slice := newSlice(svc, family, backends[0], n)
				slice.Endpoints, endpoints = endpoints[:take], endpoints[take:]
				out[slice.Name] = slice
				count++
			}
		}
		if count == 0 {
			slice := newSlice(svc, family, backend{}, 0)
			out[slice.Name] = slice // an empty slice, as upstream's controller creates it
		}
	}
	return out
}

func newSlice(svc *corev1.Service, family corev1.IPFamily, b backend, n int) *discoveryv1.EndpointSlice {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s %s %s %d", svc.UID, family, b.portsKey(), n) // writing to a hash does not fail
	yes := true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: svc.Name + "-" + strconv.FormatUint(uint64(h.Sum32()), 36),
			Labels: maps.Clone(svc.Labels),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID, Controller: &yes,
				BlockOwnerDeletion: &yes,
			}},
		},
		AddressType: discoveryv1.AddressType(family),
	}
	if slice.Labels == nil {
		slice.Labels = map[string]string{}
	}
	slice.Labels[discoveryv1.LabelServiceName], slice.Labels[discoveryv1.LabelManagedBy] = svc.Name,
		endpointSliceManager
	delete(slice.Labels, corev1.IsHeadlessService)
	if isHeadless(svc) {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range b.ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Port: &p.port, Protocol: &p.protocol,
			AppProtocol: p.app})
	}
	return slice
}

func endpointOf(b backend, svc *corev1.Service, ip string, zone func(node string) string) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{
		Addresses:  []string{ip},
		Conditions: discoveryv1.EndpointConditions{Ready: &b.ready, Serving: &b.serving, Terminating: &b.terminating},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: b.pod.Namespace, Name: b.pod.Name, UID: b.pod.UID},
	}
	if node := b.pod.Spec.NodeName; node != "" {
		out.NodeName = &node
		if z := zone(node); z != "" {
			out.Zone = &z
		}
	}
	if b.pod.Spec.Hostname != "" && b.pod.Spec.Subdomain == svc.Name {
		out.Hostname = &b.pod.Spec.Hostname
	}
	return out
}
