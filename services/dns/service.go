package dns

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/miekg/dns"

	"berth/services"
)

// record is an address of a Service or of an endpoint with one of its ports.
type record struct {
	endpoint *services.Endpoint // nil for the Service itself
	address  netip.Addr
	port     uint16 // 0 if there is none
}

// answerService answers questions about a Service, its ports and its endpoints.
func (z *Zone) answerService(st state, a *Answer, q dns.Question, n name, rotate uint32) {
	owner := q.Name
	var chain []dns.RR
	for {
		key := services.Name{Namespace: n.namespace, Name: n.service}
		svc, endpoints := st.Service(key)
		if svc == nil {
			a.Rcode = dns.RcodeNameError
			break
		}
		a.Services = append(a.Services, key)
		if svc.Type != corev1.ServiceTypeExternalName {
			z.answerRecords(a, q, owner, n, svc, endpoints, rotate)
			break
		}
		target, ok := externalName(svc, n)
		if !ok {
			a.Rcode = dns.RcodeNameError
			break
		}
		cname := &dns.CNAME{Hdr: header(owner, dns.TypeCNAME, zoneTTL), Target: target}
		if q.Qtype == dns.TypeCNAME {
			a.Answer = []dns.RR{cname}
			return
		}
		lower := strings.ToLower(target)
		if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA || len(chain) == maxChain {
			return
		}
		if chain = append(chain, cname); !z.Contains(lower) {
			a.Answer, a.Target = chain, target
			return
		}
		owner = target
		if n = parse(lower, z.Domain); n.kind != kindService {
			at := z.answerName(st, dns.Question{Name: target, Qtype: q.Qtype, Qclass: q.Qclass}, rotate)
			a.Rcode, a.Answer = at.Rcode, at.Answer
			break
		}
	}
	switch {
	case len(chain) == 0:
	case a.Rcode == dns.RcodeNameError && !st.Synced():
	case a.Answer == nil: // a target without addresses is no answer
		a.Rcode = dns.RcodeSuccess
	default:
		a.Answer = append(chain, a.Answer...)
	}
}

// externalName returns the name that a Service of type ExternalName is an alias of. It has neither
// ports nor endpoints, and an address is not a name.
func externalName(svc *services.Service, n name) (target string, ok bool) {
	if n.endpoint != "" || n.port != "" || n.protocol != "" {
		return "", false
	}
	if _, err := netip.ParseAddr(svc.ExternalName); err == nil {
		return "", false
	}
	target = dns.Fqdn(svc.ExternalName)
	_, ok = dns.IsDomainName(target)
	return target, ok && target != "."
}

// answerRecords answers a question about a Service that is not an alias.
func (z *Zone) answerRecords(a *Answer, q dns.Question, owner string, n name, svc *services.Service,
	endpoints []*services.Slice, rotate uint32) {
	exists := false
	switch q.Qtype {
	case dns.TypeA, dns.TypeAAAA:
		var addresses []netip.Addr
		eachRecord(svc, endpoints, n, func(r record) bool {
			exists = true
			if r.address.Is4() == (q.Qtype == dns.TypeA) && r.address.IsValid() {
				addresses = append(addresses, r.address)
			}
			return len(addresses) < maxRecords
		})
		if len(addresses) > 1 {
			slices.SortFunc(addresses, netip.Addr.Compare)
			addresses = slices.Compact(addresses)
		}
		a.Answer = addressRecords(nil, owner, q.Qtype, addresses, rotate)
	case dns.TypeSRV:
		var records []record
		eachRecord(svc, endpoints, n, func(r record) bool {
			exists = true
			if r.address.IsValid() {
				records = append(records, r)
			}
			return len(records) < maxRecords
		})
		z.answerSRV(a, owner, svc.Name, records)
	default:
		eachRecord(svc, endpoints, n, func(record) bool {
			exists = true
			return false
		})
	}
	if !exists {
		a.Rcode = dns.RcodeNameError
	}
}

// answerSRV adds the SRV records of a Service and the addresses of their targets.
func (z *Zone) answerSRV(a *Answer, owner string, svc services.Name, records []record) {
	if len(records) == 0 {
		return
	}
	type target struct {
		name string
		port uint16
	}
	type targetAddress struct {
		name    string
		address netip.Addr
	}
	weight := uint16(max(1, 100/len(records)))
	targets, addresses := map[target]bool{}, map[targetAddress]bool{}
	service, host := z.serviceName(svc), ""
	var previous *services.Endpoint
	for _, r := range records {
		switch {
		case r.port == 0:
			continue
		case r.endpoint == nil:
			host = service
		case r.endpoint != previous:
			host, previous = hostname(r.endpoint)+"."+service, r.endpoint
		}
		if t := (target{host, r.port}); !targets[t] {
			targets[t] = true
			a.Answer = append(a.Answer,
				&dns.SRV{Hdr: header(owner, dns.TypeSRV, zoneTTL), Weight: weight, Port: r.port, Target: host})
		}
		if t := (targetAddress{host, r.address}); !addresses[t] {
			addresses[t] = true
			a.Extra = addressRecords(a.Extra, host, bothTypes, []netip.Addr{r.address}, 0)
		}
	}
}

// eachRecord calls yield for each record of the Service or of its endpoints that the name selects,
// until it returns false. A Service without an address has one without an address.
func eachRecord(svc *services.Service, endpoints []*services.Slice, n name, yield func(record) bool) {
	if svc.Headless || n.endpoint != "" {
		eachEndpoint(svc, endpoints, n, yield)
		return
	}
	every := func(port uint16) bool {
		for _, ip := range svc.ClusterIPs {
			if !yield(record{address: ip, port: port}) {
				return false
			}
		}
		return len(svc.ClusterIPs) > 0 || yield(record{})
	}
	if len(svc.Ports) == 0 && n.port == "" && n.protocol == "" {
		every(0)
	}
	for _, p := range svc.Ports {
		if n.matches(p.Name, p.Protocol) && !every(p.Port) {
			return
		}
	}
}

// eachEndpoint calls yield for each port of each ready endpoint that the name selects, until it
// returns false.
func eachEndpoint(svc *services.Service, endpoints []*services.Slice, n name, yield func(record) bool) {
	address := dashed(n.endpoint)
	for _, slice := range endpoints {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !ready(svc, e) || n.endpoint != "" && !hasName(e, n.endpoint, address) {
				continue
			}
			if len(slice.Ports) == 0 && n.port == "" && n.protocol == "" {
				if !yield(record{e, e.Address, 0}) {
					return
				}
			}
			for _, p := range slice.Ports {
				if n.matches(p.Name, p.Protocol) && !yield(record{e, e.Address, p.Port}) {
					return
				}
			}
		}
	}
}

// matches reports whether the name selects a port.
func (n name) matches(port string, protocol corev1.Protocol) bool {
	return (n.port == "" || strings.EqualFold(n.port, port)) &&
		(n.protocol == "" || strings.EqualFold(n.protocol, string(protocol)))
}

// ready reports whether an endpoint has records.
func ready(svc *services.Service, e *services.Endpoint) bool { return e.Ready || svc.PublishNotReady }

// hasName reports whether the endpoint has a name within its Service. address is what the name means
// if it is an address with dashes.
func hasName(e *services.Endpoint, label string, address netip.Addr) bool {
	if isLabel(e.Hostname) {
		return e.Hostname == label
	}
	return e.Address == address && dash(address) == label
}

// hostname returns the name of an endpoint within its Service: its hostname, or its address with
// dashes.
func hostname(e *services.Endpoint) string {
	if isLabel(e.Hostname) {
		return e.Hostname
	}
	return dash(e.Address)
}
