package dnstest

import "strings"

// difference is a difference from CoreDNS on purpose.
type difference struct {
	// Reason says why, as docs/dns.md does.
	Reason string
	is     func(q Question, theirs, ours answer) bool
}

// answer is a parsed answer of Ask.
type answer struct{ rcode, records string }

// noData reports whether the name exists without records of the type.
func (a answer) noData() bool { return a.rcode == "NOERROR" && a.records == "" }

func parseAnswer(text string) answer {
	parts := strings.Split(text, " | ")
	a := answer{rcode: strings.TrimSuffix(parts[0], " aa")}
	if len(parts) > 1 {
		a.records = parts[1]
	}
	return a
}

var differences = []difference{
	{"a name that exists has no TXT records; it is not missing", func(q Question, theirs, ours answer) bool {
		return q.Type == "TXT" && theirs.rcode == "NXDOMAIN" && ours.noData()
	}},
	{"dns-version and ns.dns exist for all types", func(q Question, theirs, ours answer) bool {
		return (strings.HasPrefix(q.Name, "dns-version.") || strings.HasPrefix(q.Name, "ns.dns.")) &&
			theirs.rcode == "NXDOMAIN" && ours.noData()
	}},
	{"a missing name is missing for SOA queries too", func(q Question, theirs, ours answer) bool {
		return q.Type == "SOA" && theirs.noData() && ours.rcode == "NXDOMAIN"
	}},
	{"the name server has the addresses of the node's server", func(q Question, _, ours answer) bool {
		return (strings.HasPrefix(q.Name, "ns.dns.") || q.Name == "cluster.local." && q.Type == "NS") &&
			ours.rcode == "NOERROR"
	}},
	{"names of pods are answered in any namespace", func(q Question, theirs, ours answer) bool {
		return strings.HasSuffix(q.Name, ".pod"+domain) && theirs.rcode == "NXDOMAIN" && ours.rcode == "NOERROR"
	}},
	{"a pod has no SRV records", func(q Question, theirs, ours answer) bool {
		return q.Type == "SRV" && strings.HasSuffix(q.Name, ".pod"+domain) && ours.noData() &&
			strings.Contains(theirs.records, " srv 0 100 0 ")
	}},
	{"names elsewhere keep the spelling of the query", func(q Question, theirs, ours answer) bool {
		return theirs.rcode == ours.rcode &&
			strings.ReplaceAll(theirs.records, strings.ToLower(q.Name), "@") == ours.records
	}},
	{"a namespace without Services is missing", func(q Question, theirs, ours answer) bool {
		return q.Name == "vacant.svc"+domain && theirs.noData() && ours.rcode == "NXDOMAIN"
	}},
}

// Explain returns the reason of a difference from CoreDNS, and false if it has none.
func Explain(q Question, theirs, ours string) (reason string, ok bool) {
	for _, d := range differences {
		if d.is(q, parseAnswer(theirs), parseAnswer(ours)) {
			return d.Reason, true
		}
	}
	return "", false
}

// Reasons returns the reasons of all differences on purpose.
func Reasons() (out []string) {
	for _, d := range differences {
		out = append(out, d.Reason)
	}
	return out
}
