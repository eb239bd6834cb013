package localservices

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// Allocation is what a Service has been assigned.
type Allocation struct {
	ClusterIP netip.Addr `json:"clusterIP,omitzero"`
	// NodePorts are by PROTOCOL/PORT of the Service.
	NodePorts map[string]uint16 `json:"nodePorts,omitempty"`
	// LoadBalancerIPs are addresses of the node.
	LoadBalancerIPs []netip.Addr `json:"loadBalancerIPs,omitempty"`
}

func (a Allocation) equal(b Allocation) bool {
	return a.ClusterIP == b.ClusterIP && maps.Equal(a.NodePorts, b.NodePorts) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs)
}

// Range of node ports, as in Kubernetes.
const (
	firstNodePort = 30000
	lastNodePort  = 32767
)

// reservedAddresses at the start of the range are not assigned: they are for the addresses that
// manifests and the cluster's DNS request.
const reservedAddresses = 16

// Problem is why a Service could not get what it requests. Reason is that of an event, as in Kubernetes.
type Problem struct {
	Reason, Message string
	// Routed is true if the Service only lacks the address of a load balancer.
	Routed bool
}

// Allocate assigns addresses and node ports to Services: those that a Service requests, otherwise those
// that it had, otherwise free ones. It returns the assignments and, for each Service that could not get
// what it requests, why; such a Service is in no assignment unless Problem.Routed is true. The result does
// not depend on the order.
func Allocate(all []*corev1.Service, had map[services.Name]Allocation, from netip.Prefix, node Node,
) (map[services.Name]Allocation, map[services.Name]Problem) {
	a := allocator{
		from: from, node: node, addresses: map[netip.Addr]services.Name{}, ports: map[string]services.Name{},
		out: map[services.Name]Allocation{}, problems: map[services.Name]Problem{},
	}
	all = slices.SortedFunc(slices.Values(all), func(x, y *corev1.Service) int {
		return nameOf(x).Compare(nameOf(y))
	})
	// Requests come before earlier assignments, and those before new ones.
	for _, svc := range all {
		a.request(svc)
	}
	for _, svc := range all {
		a.keep(svc, had[nameOf(svc)])
	}
	for _, svc := range all {
		a.assign(svc)
	}
	a.loadBalancers(all, had)
	for name, p := range a.problems {
		if !p.Routed {
			delete(a.out, name)
		}
	}
	return a.out, a.problems
}

// dnsOffset is the offset of the address of the DNS server in the range.
const dnsOffset = 10

// DNSAddress returns the address of the DNS server in a range of cluster IPs.
func DNSAddress(from netip.Prefix) netip.Addr { return offset(from.Masked().Addr(), dnsOffset) }

type allocator struct {
	from      netip.Prefix
	node      Node
	addresses map[netip.Addr]services.Name
	ports     map[string]services.Name // by PROTOCOL/NODEPORT
	out       map[services.Name]Allocation
	problems  map[services.Name]Problem
}

// problem records why a Service does not get what it needs.
func (a *allocator) problem(name services.Name, reason, format string, args ...any) {
	a.problems[name] = Problem{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func nameOf(svc *corev1.Service) services.Name {
	return services.Name{Namespace: svc.Namespace, Name: svc.Name}
}

// needsAddress reports whether the Service has a cluster IP.
func needsAddress(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

func needsNodePorts(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return svc.Spec.AllocateLoadBalancerNodePorts == nil || *svc.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

func portKey(p corev1.ServicePort) string { return fmt.Sprintf("%s/%d", p.Protocol, p.Port) }

func nodePortKey(p corev1.Protocol, n uint16) string { return fmt.Sprintf("%s/%d", p, n) }

// request takes the address and the node ports that a Service requests.
func (a *allocator) request(svc *corev1.Service) {
	name := nameOf(svc)
	got := Allocation{NodePorts: map[string]uint16{}}
	if needsAddress(svc) && svc.Spec.ClusterIP != "" {
		ip, err := netip.ParseAddr(svc.Spec.ClusterIP)
		switch owner, taken := a.addresses[ip]; {
		case err != nil || !services.Routable(ip):
			a.problem(name, "ClusterIPNotValid", "spec.clusterIP: %s cannot be the address of a Service",
				svc.Spec.ClusterIP)
		case taken:
			a.problem(name, "ClusterIPAlreadyAllocated", "spec.clusterIP: %s is the address of Service %s", ip, owner)
		default:
			a.addresses[ip], got.ClusterIP = name, ip
		}
	}
	if needsNodePorts(svc) {
		for _, p := range svc.Spec.Ports {
			if p.NodePort == 0 {
				continue
			}
			n := uint16(p.NodePort)
			if owner, taken := a.ports[nodePortKey(p.Protocol, n)]; taken {
				a.problem(name, "PortAlreadyAllocated", "spec.ports: node port %d/%s is used by Service %s", n,
					p.Protocol, owner)
				continue
			}
			a.ports[nodePortKey(p.Protocol, n)], got.NodePorts[portKey(p)] = name, n
		}
	}
	a.out[name] = got
}

// keep takes what a Service had and does not request.
func (a *allocator) keep(svc *corev1.Service, had Allocation) {
	name := nameOf(svc)
	got := a.out[name]
	if needsAddress(svc) && !got.ClusterIP.IsValid() && a.from.Contains(had.ClusterIP) {
		if _, taken := a.addresses[had.ClusterIP]; !taken {
			a.addresses[had.ClusterIP], got.ClusterIP = name, had.ClusterIP
		}
	}
	if needsNodePorts(svc) {
		for _, p := range svc.Spec.Ports {
			n, ok := had.NodePorts[portKey(p)]
			if _, taken := a.ports[nodePortKey(p.Protocol, n)]; ok && !taken && got.NodePorts[portKey(p)] == 0 {
				a.ports[nodePortKey(p.Protocol, n)], got.NodePorts[portKey(p)] = name, n
			}
		}
	}
	a.out[name] = got
}

// assign takes free addresses and ports for what is left. The hash of the name selects the first one to
// try, so that the same files get the same addresses on most nodes.
func (a *allocator) assign(svc *corev1.Service) {
	name := nameOf(svc)
	got := a.out[name]
	if needsAddress(svc) && !got.ClusterIP.IsValid() && a.problems[name] == (Problem{}) {
		ip, ok := a.freeAddress(name)
		if !ok {
			a.problem(name, "ServiceCIDRFull", "spec.clusterIP: the range %s has no free address", a.from)
		} else {
			a.addresses[ip], got.ClusterIP = name, ip
		}
	}
	if needsNodePorts(svc) {
		for _, p := range svc.Spec.Ports {
			if got.NodePorts[portKey(p)] != 0 {
				continue
			}
			n, ok := a.freePort(name, p)
			if !ok {
				a.problem(name, "PortRangeFull", "spec.ports: no node port is free for %s", portKey(p))
				continue
			}
			a.ports[nodePortKey(p.Protocol, n)], got.NodePorts[portKey(p)] = name, n
		}
	}
	a.out[name] = got
}

// maxAddresses limits the part of a range that is used.
const maxAddresses = 1 << 16

func (a *allocator) freeAddress(name services.Name) (netip.Addr, bool) {
	bits := min(a.from.Addr().BitLen()-a.from.Bits(), 16)
	size := uint64(1)<<bits - 1 // without the last one, the broadcast address of IPv4
	if size <= reservedAddresses {
		return netip.Addr{}, false
	}
	size -= reservedAddresses
	start := hashOf(name.String()) % size
	for i := range min(size, maxAddresses) {
		ip := offset(a.from.Masked().Addr(), reservedAddresses+(start+i)%size)
		if _, taken := a.addresses[ip]; !taken {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func (a *allocator) freePort(name services.Name, p corev1.ServicePort) (uint16, bool) {
	const size = lastNodePort - firstNodePort + 1
	start := hashOf(name.String()+" "+portKey(p)) % size
	for i := range uint64(size) {
		n := uint16(firstNodePort + (start+i)%size)
		if _, taken := a.ports[nodePortKey(p.Protocol, n)]; !taken {
			return n, true
		}
	}
	return 0, false
}

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // a hash never fails
	return h.Sum64()
}

// offset returns the address that is n after ip. The sum must not exceed 16 bits of the host part.
func offset(ip netip.Addr, n uint64) netip.Addr {
	b := ip.AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += uint64(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	out, _ := netip.AddrFromSlice(b)
	return out
}

// compact returns the compact form of a Service with what it has been assigned.
func compact(svc *corev1.Service, got Allocation) *services.Service {
	full := svc.DeepCopy()
	if got.ClusterIP.IsValid() {
		full.Spec.ClusterIP, full.Spec.ClusterIPs = got.ClusterIP.String(), nil
	}
	for i := range full.Spec.Ports {
		full.Spec.Ports[i].NodePort = int32(got.NodePorts[portKey(full.Spec.Ports[i])])
	}
	for _, ip := range got.LoadBalancerIPs {
		full.Status.LoadBalancer.Ingress = append(full.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: ip.String()})
	}
	full.UID = uidOf(nameOf(svc))
	return services.FromService(full)
}
