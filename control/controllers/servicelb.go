package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"berth/control/loadbalancer"
)

const (
	// LoadBalancerClass selects this controller in a cluster with another one.
	LoadBalancerClass = "berth.dev/load-balancer"
	// LoadBalancerAddresses is an annotation with the addresses that a Service asks for, separated by commas.
	LoadBalancerAddresses = "berth.dev/load-balancer-addresses"
	// loadBalancerCondition is the condition of Services that this controller serves. The nodes announce the
	// addresses of a Service if its reason is reasonFromPool: see package services.
	loadBalancerCondition = "berth.dev/LoadBalancerAddress"
	reasonFromPool        = "FromPool"
	reasonFromNodes       = "FromNodes"
	reasonNotAssigned     = "NotAssigned"

	loadBalancerFinalizer = "service.kubernetes.io/load-balancer-cleanup" // as in upstream
	allLoadBalancers      = "all"                                         // the only key
	staleAddressDelay     = 50 * time.Millisecond
)

// serviceLBController assigns addresses to Services of type LoadBalancer.
type serviceLBController struct {
	Config
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	written  map[types.UID]writtenService // until the cache has it
	reported map[types.UID]string         // last problem of an event
}

// writtenService is the result of a write, and the version that it replaced.
type writtenService struct {
	replaced string
	result   *corev1.Service
}

func newServiceLBController(c Config) ([]*controller, error) {
	core, discovery := c.Informers.Core().V1(), c.Informers.Discovery().V1()
	l := &serviceLBController{
		Config: c, services: core.Services().Lister(), nodes: core.Nodes().Lister(),
		slices: discovery.EndpointSlices().Lister(), written: map[types.UID]writtenService{},
		reported: map[types.UID]string{},
	}
	ctrl := c.newController(l.sync)
	err := ctrl.watch(core.Services().Informer(), func(obj any) []string {
		if svc, ok := obj.(*corev1.Service); ok && (isOurs(svc) || wasOurs(svc)) {
			return []string{allLoadBalancers}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = ctrl.watch(core.Nodes().Informer(), func(any) []string { return []string{allLoadBalancers} })
	if err != nil {
		return nil, err
	}
	return []*controller{ctrl}, ctrl.watch(discovery.EndpointSlices().Informer(), l.keysOfSlice)
}

// keysOfSlice queues the decision if it depends on the endpoints.
func (l *serviceLBController) keysOfSlice(obj any) []string {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	svc, err := l.services.Services(slice.Namespace).Get(slice.Labels[discoveryv1.LabelServiceName])
	if err == nil && isOurs(svc) && isLocal(svc) && len(l.LoadBalancerPool) == 0 {
		return []string{allLoadBalancers}
	}
	return nil
}

// isOurs reports whether this controller serves the Service. A Service without a class that has addresses of
// another implementation keeps them.
func isOurs(svc *corev1.Service) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if class := svc.Spec.LoadBalancerClass; class != nil {
		return *class == LoadBalancerClass
	}
	return len(svc.Status.LoadBalancer.Ingress) == 0 || wasOurs(svc)
}

// wasOurs reports whether this controller has assigned addresses to the Service.
func wasOurs(svc *corev1.Service) bool {
	return meta.FindStatusCondition(svc.Status.Conditions, loadBalancerCondition) != nil
}

func isLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// sync decides about all Services and writes what has changed.
func (l *serviceLBController) sync(ctx context.Context, _ string) (time.Duration, error) {
	all, err := l.currentServices()
	if err != nil {
		return 0, err
	}
	in := loadbalancer.Input{Pool: l.LoadBalancerPool}
	if in.Nodes, err = l.usableNodes(); err != nil {
		return 0, err
	}
	invalid := map[loadbalancer.Name]string{}
	owner := map[netip.Addr]loadbalancer.Name{} // as the API has it
	current := map[loadbalancer.Name][]netip.Addr{}
	for _, svc := range all {
		s, problem := l.input(svc)
		current[s.Name] = s.Current
		for _, a := range s.Current {
			owner[a] = s.Name
		}
		if !isOurs(svc) || svc.DeletionTimestamp != nil {
			continue
		}
		if problem != "" {
			invalid[s.Name] = problem
		}
		in.Services = append(in.Services, s)
	}
	decided := loadbalancer.Decide(in)
	var again time.Duration
	var errs []error
	for _, svc := range all {
		name := loadbalancer.Name{Namespace: svc.Namespace, Name: svc.Name}
		a := decided[name]
		if problem := invalid[name]; problem != "" {
			a = loadbalancer.Assignment{Problem: problem}
		}
		isTaken := func(address netip.Addr) bool {
			other, taken := owner[address]
			return taken && other != name
		}
		if len(l.LoadBalancerPool) > 0 && slices.ContainsFunc(a.Addresses, isTaken) {
			again = staleAddressDelay // after the other Service has lost it
			loses := func(address netip.Addr) bool { return !slices.Contains(a.Addresses, address) }
			if !slices.ContainsFunc(current[name], loses) {
				continue
			}
			// The other Service may wait for what this one loses.
			a.Addresses = slices.DeleteFunc(slices.Clone(a.Addresses), isTaken)
		}
		errs = append(errs, l.apply(ctx, svc, a))
	}
	return again, errors.Join(errs...)
}

// currentServices returns the Services that this controller has to do with, in their newest known version.
func (l *serviceLBController) currentServices() (out []*corev1.Service, err error) {
	all, err := l.services.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	known := map[types.UID]bool{}
	for _, svc := range all {
		known[svc.UID] = true
		if w, ok := l.written[svc.UID]; ok && w.replaced == svc.ResourceVersion {
			svc = w.result
		} else {
			delete(l.written, svc.UID)
		}
		if isOurs(svc) || wasOurs(svc) {
			out = append(out, svc)
		}
	}
	for uid := range l.reported {
		if !known[uid] {
			delete(l.reported, uid)
		}
	}
	for uid := range l.written {
		if !known[uid] {
			delete(l.written, uid)
		}
	}
	return out, nil
}

// input converts a Service for the decision. problem is why its request is invalid.
func (l *serviceLBController) input(svc *corev1.Service) (s loadbalancer.Service, problem string) {
	s = loadbalancer.Service{
		Name: loadbalancer.Name{Namespace: svc.Namespace, Name: svc.Name}, Created: svc.CreationTimestamp.Time,
		Local: isLocal(svc), Admitted: meta.IsStatusConditionTrue(svc.Status.Conditions, loadBalancerCondition),
	}
	for _, f := range svc.Spec.IPFamilies {
		s.IPv4, s.IPv6 = s.IPv4 || f == corev1.IPv4Protocol, s.IPv6 || f == corev1.IPv6Protocol
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		s.Ports = append(s.Ports, loadbalancer.Port{Protocol: string(p.Protocol), Port: p.Port})
	}
	if s.Local {
		s.Endpoints = l.nodesWithEndpoints(svc)
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			s.Current = append(s.Current, a)
		}
	}
	wanted := svc.Annotations[LoadBalancerAddresses]
	if wanted == "" {
		wanted = svc.Spec.LoadBalancerIP
	}
	for text := range strings.SplitSeq(wanted, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			return s, fmt.Sprintf("requested address %q is not an IP address", text)
		}
		s.Wanted = append(s.Wanted, a)
	}
	return s, ""
}

// nodesWithEndpoints returns the nodes that have a ready endpoint of the Service.
func (l *serviceLBController) nodesWithEndpoints(svc *corev1.Service) map[string]bool {
	out := map[string]bool{}
	list, err := l.slices.EndpointSlices(svc.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: svc.Name,
	}))
	if err != nil {
		return out // a list of a cache does not fail
	}
	for _, slice := range list {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out[*e.NodeName] = true
			}
		}
	}
	return out
}

// usableNodes converts the nodes for the decision.
func (l *serviceLBController) usableNodes() (out []loadbalancer.Node, err error) {
	all, err := l.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range all {
		_, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]
		node := loadbalancer.Node{
			Name: n.Name, Usable: !excluded && n.DeletionTimestamp == nil && isReady(n),
			Reserved: map[loadbalancer.Port]string{{Protocol: "TCP", Port: 22}: "SSH"},
		}
		if p := n.Status.DaemonEndpoints.KubeletEndpoint.Port; p != 0 {
			node.Reserved[loadbalancer.Port{Protocol: "TCP", Port: p}] = "the node agent"
		}
		if l.APIServerPort != 0 {
			node.Reserved[loadbalancer.Port{Protocol: "TCP", Port: int32(l.APIServerPort)}] = "the API server"
		}
		for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
			for _, address := range n.Status.Addresses {
				if a, err := netip.ParseAddr(address.Address); err == nil && address.Type == kind &&
					!slices.Contains(node.Addresses, a) {
					node.Addresses = append(node.Addresses, a)
				}
			}
		}
		out = append(out, node)
	}
	return out, nil
}

// apply writes the assignment of a Service, and records events.
func (l *serviceLBController) apply(ctx context.Context, svc *corev1.Service, a loadbalancer.Assignment) error {
	if !isOurs(svc) || svc.DeletionTimestamp != nil {
		return l.release(ctx, svc)
	}
	next := svc.DeepCopy()
	if !slices.Contains(next.Finalizers, loadBalancerFinalizer) {
		next.Finalizers = append(next.Finalizers, loadBalancerFinalizer)
	}
	next.Status.LoadBalancer.Ingress = ingressOf(a.Addresses)
	meta.SetStatusCondition(&next.Status.Conditions, l.condition(svc, a))
	if a.Problem != "" && l.reported[svc.UID] != a.Problem {
		l.Events.Eventf(svc, corev1.EventTypeWarning, "SyncLoadBalancerFailed",
			"Error syncing load balancer: failed to ensure load balancer: %s", a.Problem)
	}
	l.reported[svc.UID] = a.Problem
	if equality.Semantic.DeepEqual(next, svc) {
		return nil
	}
	first := !wasOurs(svc)
	if first {
		l.Events.Event(svc, corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer")
	}
	if err := l.write(ctx, svc, next); err != nil {
		return err
	}
	l.Log.Info("load balancer addresses assigned", "service", svc.Namespace+"/"+svc.Name, "addresses", a.Addresses,
		"problem", a.Problem)
	switch was := meta.IsStatusConditionTrue(svc.Status.Conditions, loadBalancerCondition); {
	case a.Problem != "":
	case first || !was:
		l.Events.Event(svc, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	case !equality.Semantic.DeepEqual(svc.Status.LoadBalancer, next.Status.LoadBalancer):
		l.Events.Event(svc, corev1.EventTypeNormal, "UpdatedLoadBalancer", "Updated load balancer with new hosts")
	}
	return nil
}

// condition returns the condition that describes an assignment.
func (l *serviceLBController) condition(svc *corev1.Service, a loadbalancer.Assignment) metav1.Condition {
	c := metav1.Condition{
		Type: loadBalancerCondition, Status: metav1.ConditionTrue, Reason: reasonFromNodes,
		Message: "addresses of nodes", ObservedGeneration: svc.Generation,
	}
	if len(l.LoadBalancerPool) > 0 {
		c.Reason, c.Message = reasonFromPool, "addresses of the load balancer pool, which nodes announce"
	}
	if a.Problem != "" {
		c.Message = a.Problem
		if c.Status = metav1.ConditionFalse; len(a.Addresses) == 0 {
			c.Reason = reasonNotAssigned
		}
	}
	return c
}

func ingressOf(addresses []netip.Addr) (out []corev1.LoadBalancerIngress) {
	mode := corev1.LoadBalancerIPModeVIP
	for _, a := range addresses {
		out = append(out, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return out
}

// release removes the addresses and the finalizer of a Service that is deleted or of another type.
func (l *serviceLBController) release(ctx context.Context, svc *corev1.Service) error {
	next := svc.DeepCopy()
	next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == loadBalancerFinalizer })
	next.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	meta.RemoveStatusCondition(&next.Status.Conditions, loadBalancerCondition)
	delete(l.reported, svc.UID)
	if equality.Semantic.DeepEqual(next, svc) {
		return nil
	}
	l.Events.Event(svc, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
	if err := l.write(ctx, svc, next); err != nil {
		return err
	}
	l.Events.Event(svc, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	return nil
}

// write updates the status and the finalizers.
func (l *serviceLBController) write(ctx context.Context, svc, next *corev1.Service) error {
	result, err := l.Client.CoreV1().Services(svc.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("update load balancer of %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	replaced := svc.ResourceVersion
	if w, ok := l.written[svc.UID]; ok {
		replaced = w.replaced // the cache is older than svc
	}
	l.written[svc.UID] = writtenService{replaced, result}
	return nil
}
