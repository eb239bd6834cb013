package dnstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Record is what CoreDNS has answered.
type Record struct {
	// Comment says how the file was made.
	Comment string  `json:"comment"`
	Objects Objects `json:"objects"`
	// Answers has the answers by "name type".
	Answers map[string]string `json:"answers"`
}

// Encode returns the file, with one object or answer in a line.
func (r Record) Encode() ([]byte, error) {
	var out bytes.Buffer
	line := func(prefix string, value any, end string) error {
		text, err := json.Marshal(value)
		fmt.Fprintf(&out, "%s%s%s\n", prefix, text, end)
		return err
	}
	err := line(`{"comment": `, r.Comment, `,`)
	out.WriteString("\"objects\": {\"services\": [\n")
	for i := range r.Objects.Services {
		err = errors.Join(err, line("", r.Objects.Services[i], comma(i, len(r.Objects.Services))))
	}
	out.WriteString("], \"endpointSlices\": [\n")
	for i := range r.Objects.Slices {
		err = errors.Join(err, line("", r.Objects.Slices[i], comma(i, len(r.Objects.Slices))))
	}
	out.WriteString("]}, \"answers\": {\n")
	for i, key := range slices.Sorted(maps.Keys(r.Answers)) {
		fmt.Fprintf(&out, "%q: ", key)
		err = errors.Join(err, line("", r.Answers[key], comma(i, len(r.Answers))))
	}
	out.WriteString("}}\n")
	return out.Bytes(), err
}

// comma returns what separates item i of n from the next one.
func comma(i, n int) string {
	if i == n-1 {
		return ""
	}
	return ","
}

// Key returns the key of a question in a Record.
func (q Question) Key() string { return q.Name + " " + q.Type }

// askTimeout limits a question to a busy server.
const askTimeout = 30 * time.Second

// Ask asks a server over TCP and returns its answer as text: the rcode, "aa" for an authoritative answer, and
// the records of each section in order. Serials are left out, and the TTLs of answers that CoreDNS caches:
// those about names elsewhere and about addresses.
func Ask(server string, q Question) (string, error) {
	m := &dns.Msg{}
	m.SetQuestion(q.Name, dns.StringToType[q.Type])
	client := dns.Client{Net: "tcp", Timeout: askTimeout}
	a, _, err := client.Exchange(m, server)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", q.Name, q.Type, err)
	}
	cached := strings.Contains(strings.ToLower(a.String()), "example.org.") || strings.HasSuffix(q.Name, ".arpa.")
	out := []string{dns.RcodeToString[a.Rcode]}
	if a.Authoritative {
		out[0] += " aa"
	}
	for _, section := range [][]dns.RR{a.Answer, a.Ns, a.Extra} {
		var lines []string
		for _, rr := range section {
			if rr.Header().Rrtype != dns.TypeOPT {
				lines = append(lines, line(q, rr, cached))
			}
		}
		slices.Sort(lines)
		out = append(out, strings.Join(lines, ", "))
	}
	return strings.TrimRight(strings.Join(out, " | "), "| "), nil
}

// line writes a record. An owner that is the name of the question, as it spells it, is @; other names are
// in lower case. The TTL of an answer that is cached is left out.
func line(q Question, rr dns.RR, cached bool) string {
	if soa, is := rr.(*dns.SOA); is {
		soa.Serial = 0
	}
	fields := strings.Fields(rr.String())
	owner := strings.ToLower(fields[0])
	if fields[0] == q.Name {
		owner = "@"
	}
	ttl := fields[1]
	if cached {
		ttl = "-"
	}
	return owner + " " + ttl + " " + strings.ToLower(strings.Join(fields[3:], " "))
}

// answerUpstream answers names of example.org and addresses of 192.0.2.0/24.
func answerUpstream(w dns.ResponseWriter, q *dns.Msg) {
	m := (&dns.Msg{}).SetReply(q)
	name, qtype := strings.ToLower(q.Question[0].Name), dns.TypeToString[q.Question[0].Qtype]
	owner := q.Question[0].Name
	var records []string
	switch name + " " + qtype {
	case "www.example.org. A", "mail.example.org. A":
		records = []string{owner + " 25 IN A 198.51.100.1", owner + " 25 IN A 198.51.100.2"}
	case "www.example.org. AAAA":
		records = []string{owner + " 25 IN AAAA 2001:db8::1"}
	case "chain.example.org. A":
		records = []string{owner + " 25 IN CNAME www.example.org.", "www.example.org. 25 IN A 198.51.100.1"}
	case "mail.example.org. MX":
		records = []string{owner + " 25 IN MX 10 mx.example.org."}
	case "mail.example.org. TXT":
		records = []string{owner + ` 25 IN TXT "v=spf1 -all"`}
	case "1.2.0.192.in-addr.arpa. PTR":
		records = []string{owner + " 25 IN PTR host.example.org."}
	}
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	if len(records) == 0 {
		if name == "missing.example.org." || strings.HasSuffix(name, ".arpa.") && name != "1.2.0.192.in-addr.arpa." {
			m.Rcode = dns.RcodeNameError
		}
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "example.org.", Rrtype: dns.TypeSOA, Class: dns.ClassINET,
			Ttl: 20}, Ns: "ns.example.org.", Mbox: "root.example.org.", Minttl: 15}}
	}
	_ = w.WriteMsg(m) // a client that has left
}
