package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"berth/services"
)

const (
	// zoneTTL is the TTL in seconds of names of the cluster, as in the usual configuration of CoreDNS.
	zoneTTL = 30
	// specVersion is the version of the Kubernetes DNS specification that Zone implements.
	specVersion = "1.1.0"
	// maxChain is the number of CNAME records that one answer follows within the domain.
	maxChain = 10
	// maxRecords limits the endpoints of one answer, which a message of 64 KiB could not hold.
	maxRecords = 4096
)

// Zone answers questions about the cluster domain. Its methods read the store and change nothing.
type Zone struct {
	// Domain is the cluster domain in lower case, with a dot at its end.
	Domain string
	Store  *services.Store
	// Addresses are those of the DNS server, for the NS record of the domain.
	Addresses []netip.Addr
}

// Answer is the answer to a question.
type Answer struct {
	Rcode             int
	Answer, Ns, Extra []dns.RR
	// Target is a name outside of the domain that continues the answer, or empty.
	Target string
	// Services are the Services that the answer comes from.
	Services []services.Name
}

// Contains reports whether the domain contains a name in lower case.
func (z *Zone) Contains(name string) bool {
	cut := len(name) - len(z.Domain)
	return cut == 0 && name == z.Domain || cut > 0 && name[cut-1] == '.' && name[cut:] == z.Domain
}

// Answer answers a question of class IN about a name of the domain. serial is that of the SOA record,
// rotate selects the first of several addresses.
func (z *Zone) Answer(q dns.Question, serial, rotate uint32) Answer {
	a, ok := z.answerUnlocked(q, rotate)
	if !ok {
		z.Store.View(func(v services.View) { a = z.answer(v, q, rotate) })
	}
	if len(a.Answer) == 0 && a.Target == "" && a.Rcode != dns.RcodeRefused {
		a.Ns = []dns.RR{z.soa(q.Name[len(q.Name)-len(z.Domain):], serial)}
	} else if q.Qtype == dns.TypeSOA {
		a.Answer = []dns.RR{z.soa(q.Name, serial)}
	}
	return a
}

// answerUnlocked answers a question while the store may change. It returns false if it has changed.
func (z *Zone) answerUnlocked(q dns.Question, rotate uint32) (a Answer, ok bool) {
	version := z.Store.Version()
	a = z.answer(z.Store, q, rotate)
	return a, z.Store.Version() == version
}

// state is what answers come from: a store, or a view of it.
type state interface {
	Service(services.Name) (*services.Service, []*services.Slice)
	HasNamespace(string) bool
	Synced() bool
}

// answer answers a question from a state of the store, without SOA records.
func (z *Zone) answer(st state, q dns.Question, rotate uint32) Answer {
	a := z.answerName(st, q, rotate)
	if a.Rcode == dns.RcodeNameError && !st.Synced() {
		a.Rcode = dns.RcodeServerFailure
	}
	return a
}

func (z *Zone) answerName(st state, q dns.Question, rotate uint32) (a Answer) {
	if q.Qtype == dns.TypeAXFR || q.Qtype == dns.TypeIXFR {
		a.Rcode = dns.RcodeRefused
		return a
	}
	qname := strings.ToLower(q.Name)
	n := parse(qname, z.Domain)
	switch n.kind {
	case kindDomain:
		z.answerDomain(st, &a, q, qname)
	case kindVersion:
		if q.Qtype == dns.TypeTXT {
			a.Answer = []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT, zoneTTL), Txt: []string{specVersion}}}
		}
	case kindNameServer:
		_, addresses := z.nameServer(st, &a)
		a.Answer = addressRecords(nil, q.Name, q.Qtype, addresses, 0)
	case kindNamespace:
		if !n.pods && !st.HasNamespace(n.namespace) {
			a.Rcode = dns.RcodeNameError
		}
	case kindPod:
		a.Answer = addressRecords(nil, q.Name, q.Qtype, []netip.Addr{n.address}, 0)
	case kindService:
		z.answerService(st, &a, q, n, rotate)
	case kindNone:
		a.Rcode = dns.RcodeNameError
	}
	return a
}

// answerDomain answers questions about the domain itself and about svc and pod below it.
func (z *Zone) answerDomain(st state, a *Answer, q dns.Question, qname string) {
	switch {
	case len(qname) != len(z.Domain):
	case q.Qtype == dns.TypeNS:
		host, addresses := z.nameServer(st, a)
		if len(addresses) == 0 {
			return
		}
		a.Answer = []dns.RR{&dns.NS{Hdr: header(q.Name, dns.TypeNS, zoneTTL), Ns: host}}
		a.Extra = addressRecords(nil, host, bothTypes, addresses, 0)
	case q.Qtype == dns.TypeSOA:
		a.Answer = []dns.RR{nil} // see Answer
	}
}

// nameServer returns the name and the addresses of the DNS server: those of the Service that has its
// address, if there is one.
func (z *Zone) nameServer(st state, a *Answer) (host string, addresses []netip.Addr) {
	for _, name := range serverServices {
		svc, _ := st.Service(name)
		if svc == nil {
			continue
		}
		for _, address := range z.Addresses {
			if slices.Contains(svc.ClusterIPs, address) {
				a.Services = append(a.Services, name)
				return z.serviceName(name), svc.ClusterIPs
			}
		}
	}
	return "ns.dns." + z.Domain, z.Addresses
}

// serverServices are the usual Services of a DNS server.
var serverServices = [...]services.Name{{Namespace: "kube-system", Name: "kube-dns"},
	{Namespace: "kube-system", Name: "coredns"}}

// soa returns the SOA record of the domain. owner is the domain as the question spells it.
func (z *Zone) soa(owner string, serial uint32) dns.RR {
	return &dns.SOA{Hdr: header(owner, dns.TypeSOA, zoneTTL), Ns: "ns.dns." + z.Domain, Mbox: "hostmaster." + z.Domain,
		Serial: serial, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: zoneTTL}
}

// serviceName returns the DNS name of a Service.
func (z *Zone) serviceName(name services.Name) string {
	return name.Name + "." + name.Namespace + ".svc." + z.Domain
}

func header(name string, rtype uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rtype, Class: dns.ClassINET, Ttl: ttl}
}

// bothTypes stands for A and AAAA.
const bothTypes = dns.TypeNone

// addressRecords appends an A or AAAA record for each address of the type. It begins with the address
// number rotate.
func addressRecords(to []dns.RR, owner string, qtype uint16, addresses []netip.Addr, rotate uint32) []dns.RR {
	if qtype != dns.TypeA && qtype != dns.TypeAAAA && qtype != bothTypes {
		return to
	}
	for i := range addresses {
		address := addresses[(uint64(i)+uint64(rotate))%uint64(len(addresses))]
		switch {
		case address.Is4() && qtype != dns.TypeAAAA:
			to = append(to, &dns.A{Hdr: header(owner, dns.TypeA, zoneTTL), A: address.AsSlice()})
		case address.Is6() && qtype != dns.TypeA:
			to = append(to, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA, zoneTTL), AAAA: address.AsSlice()})
		}
	}
	return to
}
