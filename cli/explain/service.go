package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/nodeapi"
	"berth/services"
	"berth/services/proxy/ruleset"
)

// ServiceState is a Service and what the node knows about it.
type ServiceState struct {
	Service *services.Service // not nil
	Slices  []*services.Slice
	ruleset.Explanation
	// Proxy is on, off or unknown, and ProxyError is why the rules are not up to date.
	Proxy, ProxyError string
	// EndpointsKnown is true if the node has read all EndpointSlices.
	EndpointsKnown bool
	// LoadBalancerProblem is why a Service of a file has no load balancer address, if known.
	LoadBalancerProblem string
	// AnnouncedBy returns the node that announces an address of a load balancer. Nil: no addresses are announced.
	AnnouncedBy func(netip.Addr) string
	// AddressHolder returns the hardware address of another host that has an address of a load balancer, which this
	// node therefore does not announce; empty: none. It may be nil.
	AddressHolder func(netip.Addr) string
}

// Service returns how the node routes a Service, and why nothing answers at some of its addresses.
func Service(s ServiceState) nodeapi.Service {
	out := nodeapi.Service{
		Namespace: s.Service.Namespace, Name: s.Service.Name.Name, Type: string(s.Service.Type),
		ClusterIPs: addressTexts(s.Service.ClusterIPs), NotRouted: s.NotProxied,
		ExternalIPs: addressTexts(slices.Concat(s.Service.LoadBalancerIPs, s.Service.ExternalIPs)),
	}
	for _, f := range s.Frontends {
		x := nodeapi.ServiceFrontend{
			Kind: f.Kind.String(), Address: netip.AddrPortFrom(f.Address, f.Port).String(),
			Protocol: string(f.Protocol), Action: s.action(f),
		}
		if s.AnnouncedBy != nil {
			x.AnnouncedBy = s.AnnouncedBy(f.Address)
		}
		out.Frontends = append(out.Frontends, x)
	}
	for _, p := range s.Ports {
		port := nodeapi.ServicePort{
			Name: p.Name, Port: p.Port.Port, Protocol: string(p.Protocol), Topology: p.Topology,
			Endpoints: []nodeapi.ServiceEndpoint{},
		}
		for _, e := range p.Endpoints {
			x := nodeapi.ServiceEndpoint{
				Address: e.Address.String(), Pod: e.Pod, Node: e.Node, Used: e.Cluster || e.Local, Reason: e.Reason,
			}
			if x.Used && s.Proxy != proxyOn && s.NotProxied == "" {
				x.Used, x.Reason = false, "the service proxy of this node does not run"
			}
			port.Endpoints = append(port.Endpoints, x)
		}
		out.Ports = append(out.Ports, port)
	}
	out.Problems = s.problems()
	out.Summary = s.summary(out)
	return out
}

// RejectedService returns a Service of a manifest file that the node does not run, and why.
func RejectedService(name services.Name, problem string) nodeapi.Service {
	return nodeapi.Service{
		Namespace: name.Namespace, Name: name.Name, NotRouted: problem, Problems: []string{problem},
		Summary: fmt.Sprintf("this node does not route %s of a manifest file", name),
	}
}

const (
	proxyOn  = "on"
	proxyOff = "off"
)

func addressTexts(all []netip.Addr) (out []string) {
	for _, a := range all {
		out = append(out, a.String())
	}
	return out
}

// action describes what happens to the traffic of a frontend.
func (s ServiceState) action(f ruleset.ExplainedFrontend) string {
	t := f.Target
	switch {
	case f.OwnedBy != (services.Name{}):
		return "not used: Service " + f.OwnedBy.String() + " has this address and port"
	case f.AnsweredLocally:
		return "answered by the DNS server of this node"
	case s.Proxy != proxyOn:
		return "not routed by this node"
	case t.Class == ruleset.Reject:
		return "rejected: no endpoints"
	case t.Class == ruleset.Drop:
		return "dropped: no endpoint on this node, and the traffic policy is Local"
	case t.Class == ruleset.InternalLocal:
		return fmt.Sprintf("to %s on this node", countEndpoints(int(t.Local)))
	case t.Class == ruleset.ExternalLocal && t.Local == 0:
		return "dropped for other hosts: no endpoint on this node, and externalTrafficPolicy is Local"
	case t.Class == ruleset.ExternalLocal:
		return fmt.Sprintf("to %s on this node, with the address of the client", countEndpoints(int(t.Local)))
	}
	return "to " + countEndpoints(int(t.Cluster))
}

// answers reports whether connections of any client reach an endpoint through the frontend.
func answers(f ruleset.ExplainedFrontend) bool {
	return f.AnsweredLocally || f.OwnedBy == (services.Name{}) && (f.Target.Cluster > 0 || f.Target.Local > 0)
}

// summary returns one sentence about the Service.
func (s ServiceState) summary(view nodeapi.Service) string {
	name := s.Service.Name.String()
	used, total := 0, 0
	for _, p := range view.Ports {
		for _, e := range p.Endpoints {
			if total++; e.Used {
				used++
			}
		}
	}
	switch {
	case s.Service.Type == corev1.ServiceTypeExternalName:
		return name + " is another name for " + s.Service.ExternalName + ", which DNS returns to clients"
	case s.Service.Headless && s.Service.ProxiedBy == "":
		return fmt.Sprintf("%s is headless: DNS returns %d of %s to clients, and the node routes nothing", name, used,
			countEndpoints(total))
	case s.NotProxied != "":
		return fmt.Sprintf("this node does not route %s: %s", name, s.NotProxied)
	case s.Proxy == proxyOff:
		return fmt.Sprintf("this node does not route %s: serviceProxy is off. Another program may route it", name)
	case s.Proxy != proxyOn:
		return fmt.Sprintf("this node does not route %s yet: it has not reached its API server since it was installed",
			name)
	case !slices.ContainsFunc(s.Frontends, answers):
		return "nothing answers at the addresses of " + name
	case len(s.problemsOfFrontends()) > 0:
		return fmt.Sprintf("this node sends connections to %d of %s of %s, but not from all of its addresses", used,
			countEndpoints(total), name)
	}
	return fmt.Sprintf("this node sends connections for %s to %d of %s", name, used, countEndpoints(total))
}

// problems returns why nothing answers at some addresses of the Service, in sentences.
func (s ServiceState) problems() (out []string) {
	if s.Service.Type == corev1.ServiceTypeExternalName || s.NotProxied != "" && !s.Service.Headless {
		return nil
	}
	if s.Proxy == proxyOn && s.ProxyError != "" {
		out = append(out, "The rules in the kernel are not up to date: "+s.ProxyError+".")
	}
	if !s.EndpointsKnown {
		return append(out, "The endpoints are not known: the node has not read the EndpointSlices of its API server, "+
			"or runs neither a service proxy nor a DNS server.")
	}
	ports := s.Ports
	if s.Service.Headless && len(ports) == 0 && len(s.Service.Ports) > 0 {
		out = append(out, "There are no endpoints: no running pod has the labels of the selector.")
	}
	for i := range ports {
		if text := s.problemOfPort(&ports[i]); text != "" {
			out = append(out, text)
		}
	}
	if s.Service.Type == corev1.ServiceTypeLoadBalancer && len(s.Service.LoadBalancerIPs) == 0 {
		why := "see status.loadBalancer of the Service"
		if s.LoadBalancerProblem != "" {
			why = s.LoadBalancerProblem
		}
		out = append(out, "The load balancer has no address that nodes route: "+why+".")
	}
	return append(out, s.problemsOfFrontends()...)
}

// problemOfPort returns why no endpoint of a port is used; empty: some are.
func (s ServiceState) problemOfPort(p *ruleset.ExplainedPort) string {
	name := portName(p)
	reasons := map[string]int{}
	for _, e := range p.Endpoints {
		if e.Cluster || e.Local {
			return ""
		}
		reasons[e.Reason]++
	}
	if len(p.Endpoints) > 0 {
		var parts []string
		for _, r := range slices.Sorted(maps.Keys(reasons)) {
			parts = append(parts, fmt.Sprintf("%d %s", reasons[r], r))
		}
		return fmt.Sprintf("%s has %s, and none is used: %s.", name, countEndpoints(len(p.Endpoints)),
			strings.Join(parts, "; "))
	}
	for _, slice := range s.Slices {
		if slice.IPv6 == p.IPv6 && len(slice.Endpoints) > 0 {
			return fmt.Sprintf("%s has no endpoints: the EndpointSlices of the Service have no port %q with protocol "+
				"%s.", name, p.Name, p.Protocol)
		}
	}
	return name + " has no endpoints: no running pod has the labels of the selector, or none has the target port."
}

func portName(p *ruleset.ExplainedPort) string {
	family := ""
	if p.IPv6 {
		family = " (IPv6)"
	}
	return fmt.Sprintf("Port %d/%s%s", p.Port.Port, p.Protocol, family)
}

// problemsOfFrontends returns the problems of single addresses.
func (s ServiceState) problemsOfFrontends() (out []string) {
	for _, f := range s.Frontends {
		at := fmt.Sprintf("%s %s/%s", f.Kind, netip.AddrPortFrom(f.Address, f.Port), f.Protocol)
		if f.Kind == ruleset.NodePort { // the same on all addresses of the node
			at = fmt.Sprintf("%s %d/%s", f.Kind, f.Port, f.Protocol)
		}
		var text string
		switch {
		case s.holder(f) != "":
			text = fmt.Sprintf("LoadBalancer address %s is not announced: the host with hardware address %s has it.",
				f.Address, s.holder(f))
		case f.OwnedBy != (services.Name{}):
			text = fmt.Sprintf("%s leads to Service %s, which has the same address and port.", at, f.OwnedBy)
		case f.Target.Class == ruleset.Drop:
			text = at + " drops connections: internalTrafficPolicy is Local, and no usable endpoint is on this node."
		case f.Target.Class == ruleset.ExternalLocal && f.Target.Local == 0:
			text = at + " drops connections of other hosts: externalTrafficPolicy is Local, and no usable endpoint " +
				"is on this node."
		}
		if text != "" && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// holder returns the hardware address of another host that has the address of a load balancer, or nothing.
func (s ServiceState) holder(f ruleset.ExplainedFrontend) string {
	if s.AddressHolder == nil || f.Kind != ruleset.LoadBalancerIP {
		return ""
	}
	return s.AddressHolder(f.Address)
}

func countEndpoints(n int) string {
	if n == 1 {
		return "1 endpoint"
	}
	return fmt.Sprintf("%d endpoints", n)
}
