package localservices

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/services"
)

// Names of the Kubernetes API of berth-control, with the same meaning for Services of files.
const (
	loadBalancerClass     = "berth.dev/load-balancer"
	loadBalancerAddresses = "berth.dev/load-balancer-addresses"
)

// Node is the node whose addresses Services of type LoadBalancer have.
type Node struct {
	Addresses []netip.Addr
	// Reserved are ports of these addresses that no Service may take, as PROTOCOL/PORT, with their use.
	Reserved map[string]string
}

// needsLoadBalancer reports whether the Service has the addresses of the node.
func needsLoadBalancer(svc *corev1.Service) bool {
	class := svc.Spec.LoadBalancerClass
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && (class == nil || *class == loadBalancerClass)
}

// loadBalancers assigns the addresses of the node, which Services share by port. Those that had some come
// first. A Service that gets none is routed at its other addresses.
func (a *allocator) loadBalancers(all []*corev1.Service, had map[services.Name]Allocation) {
	all = slices.DeleteFunc(slices.Clone(all), func(svc *corev1.Service) bool { return !needsLoadBalancer(svc) })
	slices.SortStableFunc(all, func(x, y *corev1.Service) int { // by name already
		first := func(svc *corev1.Service) int { return min(len(had[nameOf(svc)].LoadBalancerIPs), 1) }
		return cmp.Compare(first(y), first(x))
	})
	owners := map[string]services.Name{} // by ADDRESS PROTOCOL/PORT
	for _, svc := range all {
		name := nameOf(svc)
		got := a.out[name]
		if a.problems[name] != (Problem{}) || !got.ClusterIP.IsValid() {
			continue
		}
		addresses, problem := a.loadBalancerAddresses(svc, got.ClusterIP.Is6())
		for _, ip := range addresses {
			for _, p := range svc.Spec.Ports {
				other, taken := owners[ip.String()+" "+portKey(p)]
				switch use := a.node.Reserved[portKey(p)]; {
				case problem != "":
				case use != "":
					problem = fmt.Sprintf("port %d/%s of %s is used by %s of this node", p.Port, p.Protocol, ip, use)
				case taken:
					problem = fmt.Sprintf("port %d/%s of %s belongs to Service %s", p.Port, p.Protocol, ip, other)
				}
			}
		}
		if problem != "" {
			a.problems[name] = Problem{Reason: "SyncLoadBalancerFailed", Message: problem, Routed: true}
			continue
		}
		for _, ip := range addresses {
			for _, p := range svc.Spec.Ports {
				owners[ip.String()+" "+portKey(p)] = name
			}
		}
		got.LoadBalancerIPs = addresses
		a.out[name] = got
	}
}

// loadBalancerAddresses returns the addresses of the node that a Service asks for, otherwise all of the family
// of its cluster IP.
func (a *allocator) loadBalancerAddresses(svc *corev1.Service, ipv6 bool) (out []netip.Addr, problem string) {
	for _, ip := range a.node.Addresses {
		if ip = ip.Unmap(); ip.Is6() == ipv6 && services.Routable(ip) && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	var wanted []netip.Addr
	for text := range strings.SplitSeq(cmp.Or(svc.Annotations[loadBalancerAddresses], svc.Spec.LoadBalancerIP), ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		ip, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return nil, fmt.Sprintf("requested address %q is not an IP address", text)
		case !slices.Contains(out, ip):
			return nil, fmt.Sprintf("requested address %s is not an address of this node", ip)
		}
		wanted = append(wanted, ip)
	}
	switch {
	case len(wanted) > 0:
		return wanted, ""
	case len(out) == 0 && ipv6:
		return nil, "this node has no IPv6 address"
	case len(out) == 0:
		return nil, "this node has no IPv4 address"
	}
	return out, ""
}
