package controllers

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// maxAddresses is the capacity of an Endpoints object, as in upstream. EndpointSlices hold all
// addresses.
const maxAddresses = 1000

// endpointsController maintains the Endpoints of services with a selector.
type endpointsController struct {
	Config
	services  corelisters.ServiceLister
	pods      corelisters.PodLister
	endpoints corelisters.EndpointsLister
}

func newEndpointsController(c Config) ([]*controller, error) {
	core := c.Informers.Core().V1()
	e := &endpointsController{Config: c, services: core.Services().Lister(), pods: core.Pods().Lister(),
		endpoints: core.Endpoints().Lister()}
	ctrl := c.newController(e.sync)
	if err := ctrl.watch(core.Services().Informer(), objectKey); err != nil {
		return nil, err
	}
	if err := ctrl.watch(core.Endpoints().Informer(), objectKey); err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watchServicePods(core.Pods().Informer(), e.services)
}

func (e *endpointsController) sync(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil //nolint:nilerr // invalid key
	}
	client := e.Client.CoreV1().Endpoints(namespace)
	current, err := e.endpoints.Endpoints(namespace).Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	svc, err := e.services.Services(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		// Endpoints created by users stay: the service may be created later.
		if current == nil || current.Labels[managedByLabel] == "" {
			return 0, nil
		}
		return 0, ignoreNotFound(client.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: &current.UID}}))
	case err != nil:
		return 0, err
	case len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName:
		return 0, nil // Endpoints without a selector are managed by the user
	}
	pods, err := servicePods(svc, e.pods)
	if err != nil {
		return 0, err
	}
	desired := desiredEndpoints(svc, pods)
	switch {
	case current == nil:
		_, err = client.Create(ctx, desired, metav1.CreateOptions{})
	case equality.Semantic.DeepEqual(current.Subsets, desired.Subsets) && equality.Semantic.DeepEqual(current.Labels,
		desired.Labels) &&
		current.Annotations[corev1.EndpointsOverCapacity] == desired.Annotations[corev1.EndpointsOverCapacity]:
		return 0, nil
	default:
		next := current.DeepCopy()
		next.Subsets, next.Labels = desired.Subsets, desired.Labels
		delete(next.Annotations, corev1.EndpointsOverCapacity)
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		maps.Copy(next.Annotations, desired.Annotations)
		_, err = client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil && !ignorableCreateError(err) {
		return 0, fmt.Errorf("update endpoints of %s: %w", key, err)
	}
	return 0, nil
}

// managedByLabel marks Endpoints created by this controller, as upstream does.
const managedByLabel = "endpoints.kubernetes.io/managed-by"

// desiredEndpoints returns the Endpoints of a service, for its primary IP family.
func desiredEndpoints(svc *corev1.Service,
	pods []*corev1.Pod) *corev1.Endpoints { //nolint:staticcheck // served as long as upstream serves it
	out := &corev1.Endpoints{ //nolint:staticcheck // as above
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, Labels: maps.Clone(svc.Labels)},
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Labels[managedByLabel] = "endpoint-controller"
	delete(out.Labels, corev1.IsHeadlessService)
	if isHeadless(svc) {
		out.Labels[corev1.IsHeadlessService] = ""
	}
	left := maxAddresses
	for _, backends := range groupByPorts(backends(svc, pods)) {
		var subset corev1.EndpointSubset //nolint:staticcheck // as above
		for _, p := range backends[0].ports {
			subset.Ports = append(subset.Ports, corev1.EndpointPort{Name: p.name, Port: p.port, Protocol: p.protocol,
				AppProtocol: p.app})
		}
		for _, b := range backends {
			ip := podAddress(b.pod, ipFamilies(svc)[0])
			if ip == "" || b.terminating && !b.ready {
				continue
			}
			if left == 0 {
				out.Annotations = map[string]string{corev1.EndpointsOverCapacity: "truncated"}
				break
			}
			left--
			address := endpointAddress(b.pod, svc, ip)
			if b.ready {
				subset.Addresses = append(subset.Addresses, address)
			} else {
				subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
			}
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) > 0 {
			out.Subsets = append(out.Subsets, subset)
		}
	}
	return out
}

func endpointAddress(pod *corev1.Pod, svc *corev1.Service, ip string) corev1.EndpointAddress {
	out := corev1.EndpointAddress{IP: ip, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace,
		Name: pod.Name, UID: pod.UID}}
	if node := pod.Spec.NodeName; node != "" {
		out.NodeName = &node
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == svc.Name {
		out.Hostname = pod.Spec.Hostname
	}
	return out
}
