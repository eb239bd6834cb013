package controllers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// backend is a pod selected by a service.
type backend struct {
	pod         *corev1.Pod
	ready       bool // receives traffic
	serving     bool // would be ready if it were not terminating
	terminating bool
	ports       []backendPort
}

// backendPort is a service port as resolved for one pod.
type backendPort struct {
	name     string
	port     int32
	protocol corev1.Protocol
	app      *string
}

// backends returns the selected pods that have an IP address and have not terminated, sorted by
// name.
func backends(svc *corev1.Service, pods []*corev1.Pod) []backend {
	var out []backend
	for _, pod := range pods {
		if pod.Status.PodIP == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		b := backend{pod: pod, serving: podReady(pod) || svc.Spec.PublishNotReadyAddresses,
			terminating: pod.DeletionTimestamp != nil}
		b.ready = svc.Spec.PublishNotReadyAddresses || b.serving && !b.terminating
		for i := range svc.Spec.Ports {
			p := &svc.Spec.Ports[i]
			if n := targetPort(pod, p); n != 0 {
				b.ports = append(b.ports, backendPort{p.Name, n, p.Protocol, p.AppProtocol})
			}
		}
		if len(b.ports) == 0 && len(svc.Spec.Ports) > 0 {
			continue // the pod has none of the named ports
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b backend) int { return strings.Compare(a.pod.Name, b.pod.Name) })
	return out
}

// targetPort returns the port number of a service port in the pod, or 0 if the pod has no port of
// that name.
func targetPort(pod *corev1.Pod, p *corev1.ServicePort) int32 {
	if p.TargetPort.Type == intstr.Int {
		if p.TargetPort.IntVal == 0 {
			return p.Port
		}
		return p.TargetPort.IntVal
	}
	always := corev1.ContainerRestartPolicyAlways
	all := slices.Clone(pod.Spec.Containers)
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == always {
			all = append(all, *c)
		}
	}
	for i := range all {
		for _, port := range all[i].Ports {
			if port.Name == p.TargetPort.StrVal && port.Protocol == p.Protocol {
				return port.ContainerPort
			}
		}
	}
	return 0
}

// podAddress returns the pod's IP address of the family, or "".
func podAddress(pod *corev1.Pod, family corev1.IPFamily) string {
	ips := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	for _, text := range ips {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == (family == corev1.IPv6Protocol) {
			return text
		}
	}
	return ""
}

// ipFamilies returns the IP families of the service. IPv4 is the default for services stored before
// the field existed.
func ipFamilies(svc *corev1.Service) []corev1.IPFamily {
	if len(svc.Spec.IPFamilies) == 0 {
		return []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return svc.Spec.IPFamilies
}

// portsKey identifies a set of ports.
func (b *backend) portsKey() string {
	var out strings.Builder
	for _, p := range b.ports {
		fmt.Fprintf(&out, "%s/%d/%s,", p.name, p.port, p.protocol)
	}
	return out.String()
}

// groupByPorts groups backends with equal ports, in a stable order.
func groupByPorts(all []backend) [][]backend {
	by := map[string][]backend{}
	for _, b := range all {
		by[b.portsKey()] = append(by[b.portsKey()], b)
	}
	var out [][]backend
	for _, k := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[k])
	}
	return out
}

// isHeadless reports whether the service has no cluster IP.
func isHeadless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" &&
		svc.Spec.Type == corev1.ServiceTypeExternalName
}

// servicePods returns the pods selected by the service.
func servicePods(svc *corev1.Service, pods corelisters.PodLister) ([]*corev1.Pod, error) {
	return pods.Pods(svc.Namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
}

// watchServicePods queues the services that select a changed pod or selected it before the change.
func (c *controller) watchServicePods(pods cache.SharedIndexInformer, services corelisters.ServiceLister) error {
	enqueue := func(pod *corev1.Pod) {
		all, err := services.Services(pod.Namespace).List(labels.Everything())
		if err != nil {
			return // the lister reads from memory and does not fail
		}
		for _, svc := range all {
			if len(svc.Spec.Selector) > 0 && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				c.queue.Add(svc.Namespace + "/" + svc.Name)
			}
		}
	}
	handle := func(obj any) {
		obj = lastKnown(obj)
		if pod, ok := obj.(*corev1.Pod); ok {
			enqueue(pod)
		}
	}
	return c.addEventHandler(pods, cache.ResourceEventHandlerFuncs{
		AddFunc: handle, DeleteFunc: handle,
		UpdateFunc: func(before, obj any) {
			old, ok := before.(*corev1.Pod)
			pod, newOK := obj.(*corev1.Pod)
			if !ok || !newOK || equalForServices(old, pod) {
				return
			}
			if !maps.Equal(old.Labels, pod.Labels) {
				enqueue(old)
			}
			enqueue(pod)
		},
	})
}

// equalForServices reports whether a pod update is irrelevant to services.
func equalForServices(old, pod *corev1.Pod) bool {
	return old.UID == pod.UID && maps.Equal(old.Labels, pod.Labels) && equality.Semantic.DeepEqual(old.Status.PodIPs,
		pod.Status.PodIPs) && old.Status.PodIP == pod.Status.PodIP &&
		old.Status.Phase == pod.Status.Phase && podReady(old) == podReady(pod) &&
		(old.DeletionTimestamp == nil) == (pod.DeletionTimestamp == nil) &&
		old.Spec.NodeName == pod.Spec.NodeName
}
