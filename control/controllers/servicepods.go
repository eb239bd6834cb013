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

// backend is a pod behind a service.
type backend struct {
	pod         *corev1.Pod
	ready       bool // gets traffic
	serving     bool // could, were it not ending
	terminating bool
	ports       []backendPort
}

// backendPort is a port of a service as one pod has it.
type backendPort struct {
	name     string
	port     int32
	protocol corev1.Protocol
	app      *string
}

// backends are the pods behind a service, in order: those that have an address
// and have not ended.
func backends(svc *corev1.Service, pods []*corev1.Pod) []backend {
	var out []backend
	for _, pod := range pods {
		if pod.Status.PodIP == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		b := backend{pod: pod, serving: podReady(pod) || svc.Spec.PublishNotReadyAddresses, terminating: pod.DeletionTimestamp != nil}
		b.ready = svc.Spec.PublishNotReadyAddresses || b.serving && !b.terminating
		for i := range svc.Spec.Ports {
			p := &svc.Spec.Ports[i]
			if n := targetPort(pod, p); n != 0 {
				b.ports = append(b.ports, backendPort{p.Name, n, p.Protocol, p.AppProtocol})
			}
		}
		if len(b.ports) == 0 && len(svc.Spec.Ports) > 0 {
			continue // it has none of the ports that the service names
		}
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b backend) int { return strings.Compare(a.pod.Name, b.pod.Name) })
	return out
}

// targetPort is the number of a service's port in a pod; 0: the pod has no port of
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
		for _, has := range all[i].Ports {
			if has.Name == p.TargetPort.StrVal && has.Protocol == p.Protocol {
				return has.ContainerPort
			}
		}
	}
	return 0
}

// podAddress is the pod's address of a family; "": it has none.
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

// ipFamilies are those of a service; one from before families were filled in has
// IPv4.
func ipFamilies(svc *corev1.Service) []corev1.IPFamily {
	if len(svc.Spec.IPFamilies) == 0 {
		return []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return svc.Spec.IPFamilies
}

// portsKey tells sets of ports apart.
func (b *backend) portsKey() string {
	var out strings.Builder
	for _, p := range b.ports {
		fmt.Fprintf(&out, "%s/%d/%s,", p.name, p.port, p.protocol)
	}
	return out.String()
}

// groupByPorts puts backends with the same ports together, in a fixed order.
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

// isHeadless tells services without an address.
func isHeadless(svc *corev1.Service) bool {
	return svc.Spec.ClusterIP == corev1.ClusterIPNone || svc.Spec.ClusterIP == "" && svc.Spec.Type == corev1.ServiceTypeExternalName
}

// servicePods lists the pods of a service.
func servicePods(svc *corev1.Service, pods corelisters.PodLister) ([]*corev1.Pod, error) {
	return pods.Pods(svc.Namespace).List(labels.SelectorFromSet(svc.Spec.Selector))
}

// watchServicePods tells the worker the services that a changed pod was or is
// behind.
func (w *controller) watchServicePods(pods cache.SharedIndexInformer, services corelisters.ServiceLister) error {
	tell := func(pod *corev1.Pod) {
		all, err := services.Services(pod.Namespace).List(labels.Everything())
		if err != nil {
			return // a lister of what is in memory has no errors
		}
		for _, svc := range all {
			if len(svc.Spec.Selector) > 0 && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				w.queue.Add(svc.Namespace + "/" + svc.Name)
			}
		}
	}
	one := func(obj any) {
		if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = lost.Obj
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			tell(pod)
		}
	}
	return w.addEventHandler(pods, cache.ResourceEventHandlerFuncs{
		AddFunc: one, DeleteFunc: one,
		UpdateFunc: func(before, obj any) {
			old, ok := before.(*corev1.Pod)
			pod, too := obj.(*corev1.Pod)
			if !ok || !too || equalForServices(old, pod) {
				return
			}
			if !maps.Equal(old.Labels, pod.Labels) {
				tell(old)
			}
			tell(pod)
		},
	})
}

// equalForServices tells changes of a pod that no service sees.
func equalForServices(a, b *corev1.Pod) bool {
	return a.UID == b.UID && maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Status.PodIPs, b.Status.PodIPs) && a.Status.PodIP == b.Status.PodIP &&
		a.Status.Phase == b.Status.Phase && podReady(a) == podReady(b) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		a.Spec.NodeName == b.Spec.NodeName
}
