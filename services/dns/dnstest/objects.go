package dnstest

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"berth/services"
)

// Namespaces are those of the objects. The last one has no Services.
var Namespaces = []string{"default", "shop", "data-1", "vacant"}

// ServiceCIDRs are the ranges of the addresses of Services.
const ServiceCIDRs = "10.43.0.0/16,fd00:43::/108"

// Objects are the objects of a comparison. An API server accepts them.
type Objects struct {
	Services []corev1.Service            `json:"services"`
	Slices   []discoveryv1.EndpointSlice `json:"endpointSlices"`
}

// generator makes objects.
type generator struct {
	r       *rand.Rand
	out     Objects
	ip      int
	podIP   int
	pending []string // names that aliases may refer to
}

// Generate returns objects that follow from a seed: count Services of all kinds with their endpoints.
func Generate(seed uint64, count int) Objects {
	g := &generator{r: rand.New(rand.NewPCG(seed, 17)), ip: 100}
	for i := range count {
		g.service(i)
	}
	return g.out
}

// chance returns true in n of 10 cases.
func (g *generator) chance(n int) bool { return g.r.IntN(10) < n }

func (g *generator) service(i int) {
	namespace := Namespaces[g.r.IntN(len(Namespaces)-1)]
	svc := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("svc-%d", i)}}
	svc.Spec.Type = corev1.ServiceTypeClusterIP
	kind := g.r.IntN(10)
	if kind == 9 {
		g.alias(&svc)
		return
	}
	g.ports(&svc)
	svc.Spec.PublishNotReadyAddresses = g.chance(2)
	switch {
	case kind < 5:
		g.ip++
		svc.Spec.ClusterIPs = []string{fmt.Sprintf("10.43.%d.%d", 7+g.ip>>8, g.ip&255),
			fmt.Sprintf("fd00:43::7:%x", g.ip)}
		switch g.r.IntN(3) {
		case 0:
			svc.Spec.ClusterIPs = svc.Spec.ClusterIPs[:1]
		case 1:
			svc.Spec.ClusterIPs = svc.Spec.ClusterIPs[1:]
		}
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
		if len(svc.Spec.ClusterIPs) == 2 {
			svc.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		}
	default:
		svc.Spec.ClusterIP = corev1.ClusterIPNone
		if g.chance(2) {
			svc.Spec.Ports = nil
		}
	}
	g.out.Services = append(g.out.Services, svc)
	g.pending = append(g.pending, svc.Name+"."+namespace+".svc.cluster.local")
	for family := range g.r.IntN(3) {
		g.slice(&svc, family)
	}
}

// ports adds one to three ports.
func (g *generator) ports(svc *corev1.Service) {
	all := []corev1.ServicePort{
		{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
		{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53},
		{Name: "diam", Protocol: corev1.ProtocolSCTP, Port: 3868},
	}
	first := g.r.IntN(len(all))
	for i := range 1 + g.r.IntN(3) {
		p := all[(first+i)%len(all)]
		p.TargetPort = intstr.FromInt32(p.Port + 8000)
		svc.Spec.Ports = append(svc.Spec.Ports, p)
	}
	if len(svc.Spec.Ports) == 1 && g.chance(5) {
		svc.Spec.Ports[0].Name = ""
	}
}

// alias adds a Service of type ExternalName: of a name elsewhere, of a Service that may itself be an alias
// or not exist, or of a pod.
func (g *generator) alias(svc *corev1.Service) {
	svc.Spec.Type = corev1.ServiceTypeExternalName
	targets := []string{"www.example.org", "chain.example.org", "missing.example.org", "plain.example.org",
		"missing.shop.svc.cluster.local", svc.Name + "." + svc.Namespace + ".svc.cluster.local",
		"10-1-2-3.shop.pod.cluster.local", "vacant.svc.cluster.local"}
	svc.Spec.ExternalName = targets[g.r.IntN(len(targets))]
	if len(g.pending) > 0 && g.chance(6) {
		svc.Spec.ExternalName = g.pending[g.r.IntN(len(g.pending))]
	}
	g.out.Services = append(g.out.Services, *svc)
	g.pending = append(g.pending, svc.Name+"."+svc.Namespace+".svc.cluster.local")
}

// slice adds an EndpointSlice as the controller of Kubernetes makes it.
func (g *generator) slice(svc *corev1.Service, family int) {
	s := discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: svc.Namespace, Name: fmt.Sprintf("%s-%d", svc.Name, family),
		Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}}}
	if family == 1 {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range svc.Spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol),
			Port: new(p.Port + 8000)})
	}
	for range g.r.IntN(4) {
		if g.podIP++; g.chance(2) && g.podIP > 1 {
			g.podIP-- // several Services have one pod
		}
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.42.%d.%d", 3+g.podIP>>8, g.podIP&255)}}
		if family == 1 {
			format := []string{"fd00:42::%x", "fd00:42:%x::"}[g.r.IntN(2)]
			e.Addresses = []string{fmt.Sprintf(format, g.podIP)}
		}
		pod := fmt.Sprintf("pod-%d", g.podIP)
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: svc.Namespace, Name: pod}
		if g.chance(5) {
			e.Hostname = new(fmt.Sprintf("%s-%d", svc.Name, len(s.Endpoints)))
		}
		ready := g.chance(7)
		e.Conditions.Serving = new(ready)
		e.Conditions.Ready = new(ready || svc.Spec.PublishNotReadyAddresses)
		if g.chance(1) {
			e.Conditions = discoveryv1.EndpointConditions{}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	g.out.Slices = append(g.out.Slices, s)
}

// Fill fills a store with the objects.
func (o Objects) Fill(store *services.Store) {
	var all []*services.Service
	for i := range o.Services {
		all = append(all, services.FromService(&o.Services[i]))
	}
	store.ReplaceServices(all)
	var endpoints []*services.Slice
	for i := range o.Slices {
		if s := services.FromEndpointSlice(&o.Slices[i]); s != nil {
			endpoints = append(endpoints, s)
		}
	}
	store.ReplaceSlices(endpoints)
}
