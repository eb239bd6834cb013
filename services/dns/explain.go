package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"berth/services"
)

// Explanation says where the answer to a question comes from.
type Explanation struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Searched are the names of the search path that have no records, if the question was a short name.
	Searched []string `json:"searched,omitempty"`
	// Source is kubernetes, forward or cache.
	Source string `json:"source"`
	// Rcode is the response code, such as NOERROR.
	Rcode   string   `json:"rcode"`
	Answers []string `json:"answers,omitempty"`
	// Reason says why there is no answer; empty if there is one.
	Reason string `json:"reason,omitempty"`
	// Services are the Services of the answer with all their endpoints.
	Services []ExplainedService `json:"services,omitempty"`
	// Upstream is the server that a forwarded answer comes from.
	Upstream string `json:"upstream,omitempty"`
	// Stale is true for an expired answer that is sent because upstream servers fail.
	Stale bool `json:"stale,omitempty"`
	// Seconds is how long the answer took.
	Seconds float64 `json:"seconds"`
}

// ExplainedService is a Service that an answer comes from.
type ExplainedService struct {
	Namespace  string              `json:"namespace"`
	Name       string              `json:"name"`
	Type       string              `json:"type"`
	Headless   bool                `json:"headless,omitempty"`
	ClusterIPs []string            `json:"clusterIPs,omitempty"`
	Endpoints  []ExplainedEndpoint `json:"endpoints,omitempty"`
}

// ExplainedEndpoint is an endpoint of a Service.
type ExplainedEndpoint struct {
	Address string `json:"address"`
	Name    string `json:"name"` // in DNS, within the Service
	Pod     string `json:"pod,omitempty"`
	Node    string `json:"node,omitempty"`
	// Ready is true if the endpoint has DNS records.
	Ready bool `json:"ready"`
}

// ExplainSearch explains a name as a pod of a namespace resolves it with the dnsPolicy ClusterFirst: it tries
// the names of the search path and returns the first one that has records. If none has, it returns the first
// of all, which says most about a Service.
func (s *Server) ExplainSearch(ctx context.Context, name, namespace, qtype string) (*Explanation, error) {
	var first *Explanation
	var searched []string
	for _, candidate := range searchNames(name, namespace, s.zone.Domain) {
		e, err := s.Explain(ctx, candidate, qtype)
		if err != nil {
			return nil, err
		}
		if len(e.Answers) > 0 {
			e.Searched = searched
			return e, nil
		}
		if searched = append(searched, e.Name); first == nil {
			first = e
		}
	}
	first.Searched = searched[1:]
	return first, nil
}

// ndots is the number of dots from which on a pod tries a name as it is first.
const ndots = 5

// searchNames returns the names that a pod tries, without the search domains of the node.
func searchNames(name, namespace, domain string) (out []string) {
	if _, err := netip.ParseAddr(name); err == nil || strings.HasSuffix(name, ".") {
		return []string{name}
	}
	full := name + "."
	if strings.Count(name, ".") >= ndots {
		out = append(out, full)
	}
	for _, suffix := range []string{namespace + ".svc.", "svc.", ""} {
		out = append(out, full+suffix+domain)
	}
	if len(out) == 3 {
		out = append(out, full)
	}
	return out
}

// Explain answers a question as the server does and says why it answers so. It returns an error if the
// name or the type is not valid.
func (s *Server) Explain(ctx context.Context, name, qtype string) (*Explanation, error) {
	rtype, ok := dns.StringToType[strings.ToUpper(qtype)]
	if !ok {
		return nil, fmt.Errorf("type %q: unknown record type", qtype)
	}
	if address, err := netip.ParseAddr(name); err == nil {
		rtype = dns.TypePTR
		if name, err = dns.ReverseAddr(address.String()); err != nil {
			return nil, fmt.Errorf("name %q: %w", name, err)
		}
	}
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		return nil, fmt.Errorf("name %q: not a domain name", name)
	}
	started := time.Now()
	in := &incoming{started: started, proto: "tcp"}
	in.msg.SetQuestion(dns.Fqdn(name), rtype)
	e := &Explanation{Name: dns.Fqdn(name), Type: dns.TypeToString[rtype]}
	m, target, from := s.answerCluster(in, in.msg.Question[0])
	if m == nil || target != "" {
		m = s.explainForwarded(ctx, in, e, m, target)
	} else {
		e.Source = "kubernetes"
	}
	for _, key := range from {
		e.Services = append(e.Services, s.explainService(key))
	}
	e.Rcode = rcodeName(m.Rcode)
	for _, rr := range m.Answer {
		e.Answers = append(e.Answers, strings.ReplaceAll(rr.String(), "\t", " "))
	}
	if len(m.Answer) == 0 && e.Reason == "" {
		e.Reason = s.reason(e, m.Rcode)
	}
	e.Seconds = time.Since(started).Seconds()
	return e, nil
}

// explainForwarded answers a question with the help of upstream servers. m is the part of the answer that
// the cluster has; target continues it.
func (s *Server) explainForwarded(ctx context.Context, in *incoming, e *Explanation, m *dns.Msg,
	target string) *dns.Msg {
	e.Source = "forward"
	if s.forward == nil {
		e.Reason = "the server does not forward queries"
		return in.failure(dns.RcodeRefused)
	}
	name := target
	if m == nil {
		name = e.Name
	}
	r, ok := s.forward.cached(in.question(name))
	var err error
	if !ok {
		r, err = s.forward.resolve(ctx, in.question(name))
	}
	if r.cached {
		e.Source = "cache"
	}
	if e.Upstream, e.Stale = r.upstream, r.stale; err != nil {
		e.Reason = err.Error()
		return in.failure(dns.RcodeServerFailure)
	}
	if m == nil {
		return r.message
	}
	m.Answer = append(m.Answer, r.message.Answer...)
	return m
}

// reason says why an answer of the cluster has no records.
func (s *Server) reason(e *Explanation, rcode int) string {
	if e.Source != "kubernetes" {
		return ""
	}
	switch rcode {
	case dns.RcodeServerFailure:
		return "the Services of the cluster are not known yet"
	case dns.RcodeSuccess:
		return "the name exists and has no records of this type"
	}
	qname := strings.ToLower(e.Name)
	n := parse(qname, s.zone.Domain)
	switch {
	case n.kind == kindNamespace, n.kind == kindService && !s.zone.Store.HasNamespace(n.namespace):
		return fmt.Sprintf("namespace %s has no Services", n.namespace)
	case n.kind == kindService && len(e.Services) == 0:
		return fmt.Sprintf("namespace %s has no Service %s", n.namespace, n.service)
	case n.kind == kindService && n.endpoint != "":
		return fmt.Sprintf("Service %s has no ready endpoint %s", n.service, n.endpoint)
	case n.kind == kindService && n.port != "":
		return fmt.Sprintf("Service %s has no port %s with protocol %s", n.service, n.port, n.protocol)
	case n.kind == kindService:
		return fmt.Sprintf("Service %s is headless and has no ready endpoints", n.service)
	}
	return "the cluster domain has no such name"
}

func (s *Server) explainService(name services.Name) ExplainedService {
	e := ExplainedService{Namespace: name.Namespace, Name: name.Name}
	svc, endpoints := s.zone.Store.Service(name)
	if svc == nil {
		return e
	}
	e.Type, e.Headless = string(svc.Type), svc.Headless
	for _, ip := range svc.ClusterIPs {
		e.ClusterIPs = append(e.ClusterIPs, ip.String())
	}
	for _, slice := range endpoints {
		for i := range slice.Endpoints {
			at := &slice.Endpoints[i]
			e.Endpoints = append(e.Endpoints, ExplainedEndpoint{Address: at.Address.String(), Name: hostname(at),
				Pod: at.Pod, Node: at.Node, Ready: ready(svc, at)})
		}
	}
	slices.SortFunc(e.Endpoints, func(a, b ExplainedEndpoint) int { return strings.Compare(a.Address, b.Address) })
	return e
}
