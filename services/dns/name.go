package dns

import (
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// kind is the kind of a name in the cluster domain.
type kind uint8

const (
	kindNone       kind = iota // a name that cannot exist
	kindDomain                 // the domain, or svc or pod below it
	kindVersion                // dns-version
	kindNameServer             // ns.dns
	kindNamespace              // a namespace below svc or pod
	kindService                // a Service, its ports or its endpoints
	kindPod                    // a pod by its address
)

// name is a parsed name of the cluster domain.
type name struct {
	kind               kind
	pods               bool // below pod
	namespace, service string
	// endpoint is the hostname of an endpoint, or empty.
	endpoint string
	// port and protocol select ports of the Service; empty ones select all.
	port, protocol string
	address        netip.Addr // of a pod
}

// maxLabels is the number of labels below the domain of the longest name: _port._protocol.service.ns.svc.
const maxLabels = 5

// parse parses a name in lower case that is domain or below it. Both end with a dot.
func parse(qname, domain string) (n name) {
	if len(qname) == len(domain) {
		n.kind = kindDomain
		return n
	}
	var array [maxLabels]string
	labels, below := array[:0], qname[:len(qname)-len(domain)]
	for start, end := 0, false; !end; {
		if len(labels) == maxLabels {
			return n
		}
		var next int
		if next, end = dns.NextLabel(below, start); end {
			next = len(below)
		}
		labels = append(labels, strings.TrimSuffix(below[start:next], "."))
		start = next
	}
	rest, last := labels[:len(labels)-1], labels[len(labels)-1]
	switch {
	case len(rest) == 0 && last == "dns-version":
		n.kind = kindVersion
		return n
	case len(rest) == 1 && last == "dns" && rest[0] == "ns":
		n.kind = kindNameServer
		return n
	case last != "svc" && last != "pod":
		return n
	}
	n.pods = last == "pod"
	switch len(rest) {
	case 0:
		n.kind = kindDomain
		return n
	case 1:
		n.kind, n.namespace = kindNamespace, rest[0]
		return n
	}
	n.kind, n.service, n.namespace = kindService, rest[len(rest)-2], rest[len(rest)-1]
	switch len(rest) {
	case 3:
		n.endpoint = rest[0]
	case 4:
		n.port, n.protocol = strings.TrimPrefix(rest[0], "_"), strings.TrimPrefix(rest[1], "_")
	}
	if n.pods {
		n.kind = kindPod
		if n.address = dashed(n.service); !n.address.IsValid() {
			n.kind = kindNone
		}
	}
	return n
}

// dashed returns the address that a label writes with dashes, or the zero Addr.
func dashed(label string) netip.Addr {
	separator := ":"
	if strings.Count(label, "-") == 3 && !strings.Contains(label, "--") {
		separator = "."
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(label, "-", separator))
	if err != nil || a.Zone() != "" {
		return netip.Addr{}
	}
	return a.Unmap()
}

// dash returns the label that writes an address with dashes.
func dash(a netip.Addr) string {
	if a.Is4() {
		return strings.ReplaceAll(a.String(), ".", "-")
	}
	label := strings.ReplaceAll(a.String(), ":", "-")
	if strings.HasSuffix(label, "-") {
		label += "0"
	}
	return label
}

// isLabel reports whether text is a DNS label of RFC 1123 in lower case, as the API requires of
// hostnames.
func isLabel(text string) bool {
	if text == "" || len(text) > 63 || text[0] == '-' || text[len(text)-1] == '-' {
		return false
	}
	for i := range len(text) {
		if c := text[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
