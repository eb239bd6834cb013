package main

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"berth/agent/localservices"
	"berth/cli/explain"
	"berth/nodeapi"
	"berth/services"
	"berth/services/dns"
)

// listServices returns the Services that this node knows and how it routes them.
func (b *berth) listServices(_ context.Context, namespace, name string) (nodeapi.NodeServices, error) {
	s := b.services
	out := nodeapi.NodeServices{Proxy: "unknown", DNS: "unknown", Services: []nodeapi.Service{}}
	endpointsKnown := s.store.Synced()
	if d, known := s.Decision(); known {
		out.Proxy, out.DNS = onOff(d.Proxy), onOff(d.DNS)
		endpointsKnown = endpointsKnown && (d.Proxy || d.DNS)
		if d.Proxy {
			out.ProxyError = s.proxy.Status().Err
		}
		if d.DNS {
			out.DNSAddresses = s.clusterDNS()
		}
	}
	var problems map[services.Name]localservices.Problem
	if s.local != nil {
		problems = s.local.Problems()
	}
	for _, n := range s.store.Names() {
		if namespace != "" && n.Namespace != namespace || name != "" && n.Name != name {
			continue
		}
		svc, endpoints := s.store.Service(n)
		if svc == nil { // deleted meanwhile
			continue
		}
		out.Services = append(out.Services, explain.Service(explain.ServiceState{
			Service: svc, Slices: endpoints, Explanation: s.proxy.Explain(svc, endpoints), Proxy: out.Proxy,
			ProxyError: out.ProxyError, EndpointsKnown: endpointsKnown,
			LoadBalancerProblem: problems[n].Message, AnnouncedBy: s.announcer.AnnouncedBy,
			AddressHolder: s.addressHolder,
		}))
	}
	if s.local != nil {
		for n, problem := range problems {
			if !problem.Routed && (namespace == "" || n.Namespace == namespace) && (name == "" || n.Name == name) {
				out.Services = append(out.Services, explain.RejectedService(n, problem.Message))
			}
		}
		slices.SortFunc(out.Services, func(a, b nodeapi.Service) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
	}
	if name != "" && len(out.Services) == 0 {
		return out, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name)
	}
	return out, nil
}

// addressHolder returns the hardware address of another host that has an address of a load balancer, or nothing.
func (s *nodeServices) addressHolder(a netip.Addr) string {
	c, _ := s.announcer.Conflict(a)
	return c.HardwareAddress
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// explainDNS returns what the DNS server of the node answers to a question.
func (b *berth) explainDNS(ctx context.Context, q nodeapi.DNSQuery) (nodeapi.DNSAnswer, error) {
	server := b.services.DNS()
	if server == nil {
		return nodeapi.DNSAnswer{}, apierrors.NewBadRequest("the DNS server of this node does not run: see " +
			"clusterDNSServer")
	}
	e, err := server.ExplainSearch(ctx, q.Name, q.Namespace, q.Type)
	if err != nil {
		return nodeapi.DNSAnswer{}, apierrors.NewBadRequest(err.Error())
	}
	return dnsView(e), nil
}

func dnsView(e *dns.Explanation) nodeapi.DNSAnswer {
	out := nodeapi.DNSAnswer{
		Name: e.Name, Type: e.Type, Rcode: e.Rcode, Source: e.Source, Answers: e.Answers, Reason: e.Reason,
		Searched: e.Searched, Upstream: e.Upstream, Stale: e.Stale, Seconds: e.Seconds,
	}
	for _, svc := range e.Services {
		for _, x := range svc.Endpoints {
			out.Endpoints = append(out.Endpoints, nodeapi.DNSServiceEndpoint{
				Service: svc.Namespace + "/" + svc.Name, Address: x.Address, Pod: x.Pod, Ready: x.Ready,
			})
		}
	}
	return out
}
