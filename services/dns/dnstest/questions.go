package dnstest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/miekg/dns"
)

// Question is a question of a comparison.
type Question struct {
	Name, Type string
}

// questions collects questions without doubles.
type questions struct {
	seen map[Question]bool
	list []Question
}

func (q *questions) add(name string, types ...string) {
	for _, t := range types {
		if next := (Question{name, t}); !q.seen[next] {
			q.seen[next] = true
			q.list = append(q.list, next)
		}
	}
}

// commonTypes are asked of each name; otherTypes of some.
var (
	commonTypes = []string{"A", "AAAA", "SRV"}
	otherTypes  = []string{"CNAME", "TXT", "MX", "PTR", "NS", "SOA", "ANY", "HTTPS", "DS"}
)

const domain = ".cluster.local."

// Questions returns questions of all kinds about objects, sorted.
func Questions(o Objects) []Question {
	q := &questions{seen: map[Question]bool{}}
	slicesOf := map[string][]discoveryv1.EndpointSlice{}
	for _, s := range o.Slices {
		key := s.Labels[discoveryv1.LabelServiceName] + "." + s.Namespace
		slicesOf[key] = append(slicesOf[key], s)
	}
	for i := range o.Services {
		svc := &o.Services[i]
		q.service(svc, slicesOf[svc.Name+"."+svc.Namespace], i%8 == 0)
	}
	q.domain()
	q.elsewhere()
	slices.SortFunc(q.list, func(a, b Question) int {
		return strings.Compare(a.Name+" "+a.Type, b.Name+" "+b.Type)
	})
	return q.list
}

// service asks about a Service, its ports and its endpoints.
func (q *questions) service(svc *corev1.Service, endpoints []discoveryv1.EndpointSlice, all bool) {
	name := svc.Name + "." + svc.Namespace + ".svc" + domain
	q.add(name, commonTypes...)
	q.add(name, "CNAME")
	q.add("_http._tcp."+name, "SRV", "A")
	for _, p := range svc.Spec.Ports {
		port := fmt.Sprintf("_%s._%s.", p.Name, strings.ToLower(string(p.Protocol)))
		if p.Name != "" {
			q.add(port+name, "SRV", "AAAA")
			q.add(p.Name+"."+strings.ToLower(string(p.Protocol))+"."+name, "SRV") // underscores are optional
		}
	}
	for _, ip := range svc.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			q.address(ip, "PTR")
		}
	}
	for i, slice := range endpoints {
		for j := range slice.Endpoints {
			e := &slice.Endpoints[j]
			q.address(e.Addresses[0], "PTR")
			if e.Hostname != nil {
				q.add(*e.Hostname+"."+name, commonTypes[(i+j)%2], "SRV")
			}
			q.add(dashes(e.Addresses[0])+"."+name, commonTypes[(i+j)%2], "SRV")
		}
	}
	if all {
		q.add(name, otherTypes...)
		q.add("_http._tcp."+name, "TXT", "MX")
		q.add("x._http._tcp."+name, commonTypes...)
		q.add("_tcp."+name, "A", "SRV")
		q.add("*."+svc.Namespace+".svc"+domain, commonTypes...)
		q.add("_any._any."+name, "SRV")
		q.add("_._."+name, "SRV", "A")
		q.add(strings.ToUpper(svc.Name)+"."+svc.Namespace+".SVC"+domain, commonTypes...)
		q.add(svc.Name+".vacant.svc"+domain, "A")
		q.add(svc.Name+"."+svc.Namespace+".pod"+domain, "A")
		q.add(svc.Name+"."+svc.Namespace+domain, "A")
	}
}

// address asks for the name of an address.
func (q *questions) address(ip string, types ...string) {
	if name, err := dns.ReverseAddr(ip); err == nil {
		q.add(name, types...)
	}
}

// domain asks about the domain itself, namespaces and pods.
func (q *questions) domain() {
	every := append(append([]string{}, commonTypes...), otherTypes...)
	for _, name := range []string{"cluster.local.", "svc" + domain, "pod" + domain, "dns-version" + domain,
		"ns.dns" + domain, "dns" + domain, "other" + domain, "missing.default.svc" + domain, "a.b.c.d.e" + domain} {
		q.add(name, every...)
	}
	q.add("CLUSTER.local.", "SOA", "A")
	for _, namespace := range append([]string{"none"}, Namespaces...) {
		for _, name := range []string{namespace + ".svc" + domain, namespace + ".pod" + domain} {
			q.add(name, "A", "SRV", "TXT", "MX")
		}
		for _, pod := range []string{"10-1-2-3", "fd00-42--7", "10-1-2", "a-b-c-d", "fd00-42--g", "--1", "1--2-3",
			"0-0-0-0", "010-1-2-3", "web"} {
			q.add(pod+"."+namespace+".pod"+domain, "A", "AAAA")
		}
	}
	q.add("x.10-1-2-3.default.pod"+domain, "A")
	q.add("10-1-2-3.default.pod"+domain, every...)
}

// elsewhere asks about names of the upstream server.
func (q *questions) elsewhere() {
	for _, name := range []string{"www.example.org.", "WWW.Example.org.", "chain.example.org.", "missing.example.org.",
		"plain.example.org.", "mail.example.org."} {
		q.add(name, "A", "AAAA", "MX", "TXT")
	}
	q.address("192.0.2.1", "PTR")
	q.address("192.0.2.9", "PTR")
	q.address("2001:db8::9", "PTR")
	q.add("1.2.0.192.in-addr.arpa.", "A", "TXT")
}

// dashes writes an address as the name of an endpoint.
func dashes(ip string) string {
	name := strings.NewReplacer(".", "-", ":", "-").Replace(ip)
	if strings.HasSuffix(name, "-") {
		name += "0"
	}
	return name
}
