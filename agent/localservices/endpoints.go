package localservices

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/podspec"
	"berth/services"
)

// Endpoints returns the EndpointSlices of a Service for the pods of the node: one for each address
// family and set of resolved ports, as the EndpointSlice controller of Kubernetes does. A Service
// without selector has none.
func Endpoints(svc *corev1.Service, pods []*corev1.Pod, node string) []*services.Slice {
	if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	byKey := map[string]*services.Slice{}
	for _, pod := range pods {
		if pod.Namespace != svc.Namespace || !selector.Matches(labels.Set(pod.Labels)) || finished(pod) {
			continue
		}
		ports := resolvePorts(svc, pod)
		if len(ports) == 0 && len(svc.Spec.Ports) > 0 {
			continue // no port of the Service has its name in the pod
		}
		for _, address := range podAddresses(pod) {
			key := fmt.Sprint(address.Is6(), ports)
			s := byKey[key]
			if s == nil {
				s = &services.Slice{
					Service: nameOf(svc), Name: fmt.Sprintf("%s-%x", svc.Name, hashOf(key)), IPv6: address.Is6(),
					Ports: ports,
				}
				byKey[key] = s
			}
			s.Endpoints = append(s.Endpoints, endpoint(svc, pod, address, node))
		}
	}
	out := make([]*services.Slice, 0, len(byKey))
	for _, s := range byKey {
		slices.SortFunc(s.Endpoints, func(a, b services.Endpoint) int {
			return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Pod, b.Pod))
		})
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *services.Slice) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// endpoint returns the endpoint of a pod.
func endpoint(svc *corev1.Service, pod *corev1.Pod, address netip.Addr, node string) services.Endpoint {
	ready, terminating := isReady(pod), pod.DeletionTimestamp != nil
	e := services.Endpoint{
		Address: address, Node: node, Pod: pod.Name, Terminating: terminating, Serving: ready,
		Ready: ready && !terminating || svc.Spec.PublishNotReadyAddresses,
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == svc.Name {
		e.Hostname = pod.Spec.Hostname
	}
	return e
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podAddresses returns the addresses of a pod, one of each family.
func podAddresses(pod *corev1.Pod) (out []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && services.Routable(a) {
			out = append(out, a)
		}
	}
	return out
}

// resolvePorts returns the ports of the pod that serve the ports of the Service.
func resolvePorts(svc *corev1.Service, pod *corev1.Pod) (out []services.EndpointPort) {
	for _, p := range svc.Spec.Ports {
		number := p.TargetPort.IntVal
		if p.TargetPort.Type == intstr.String {
			number = namedPort(pod, p)
		}
		if number > 0 {
			out = append(out, services.EndpointPort{Name: p.Name, Protocol: p.Protocol,
				Port: uint16(number)})
		}
	}
	return out
}

// namedPort returns the number of the container port that a target port names, or 0.
func namedPort(pod *corev1.Pod, p corev1.ServicePort) int32 {
	sidecars := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return !podspec.IsSidecar(&c)
	})
	for _, c := range slices.Concat(pod.Spec.Containers, sidecars) {
		for _, port := range c.Ports {
			if port.Name == p.TargetPort.StrVal && cmp.Or(port.Protocol, corev1.ProtocolTCP) == p.Protocol {
				return port.ContainerPort
			}
		}
	}
	return 0
}
