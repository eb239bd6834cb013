package dns

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/miekg/dns"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := forwarder(t, fakeServers{"192.0.2.1": answering("198.51.100.1", 20), "192.0.2.3": silent}, "192.0.2.1")
		defer f.Close()
		o := testOptions(testStore())
		o.Forward = f
		s := NewServer(o)
		defer s.Close()
		for _, c := range []struct{ name, qtype, want string }{
			{"web.ns.svc.cluster.local", "A",
				"kubernetes NOERROR [web.ns.svc.cluster.local. 30 IN A 10.96.0.10] " +
					"web ClusterIP [10.96.0.10 fd00::10] 10.1.0.1=true"},
			{"10.96.0.10", "A", "kubernetes NOERROR [10.0.96.10.in-addr.arpa. 30 IN PTR web.ns.svc.cluster.local.] " +
				"web ClusterIP [10.96.0.10 fd00::10] 10.1.0.1=true"},
			{"db-2.db.ns.svc.cluster.local", "a", "kubernetes NXDOMAIN: Service db has no ready endpoint db-2 " +
				"db ClusterIP [] 10.1.0.1=true 10.1.0.2=true 10.1.0.3=false 10.1.0.4=true fd01::=true"},
			{"empty.ns.svc.cluster.local", "A",
				"kubernetes NXDOMAIN: Service empty is headless and has no ready endpoints empty ClusterIP []"},
			{"web.ns.svc.cluster.local", "MX", "kubernetes NOERROR: the name exists and has no records of this type " +
				"web ClusterIP [10.96.0.10 fd00::10] 10.1.0.1=true"},
			{"_x._tcp.web.ns.svc.cluster.local", "SRV", "kubernetes NXDOMAIN: " +
				"Service web has no port x with protocol tcp web ClusterIP [10.96.0.10 fd00::10] 10.1.0.1=true"},
			{"missing.ns.svc.cluster.local", "A", "kubernetes NXDOMAIN: namespace ns has no Service missing"},
			{"web.other.svc.cluster.local", "A", "kubernetes NXDOMAIN: namespace other has no Services"},
			{"web.ns.cluster.local", "A", "kubernetes NXDOMAIN: the cluster domain has no such name"},
			{"example.org", "A", "forward NOERROR [example.org. 20 IN A 198.51.100.1] by 192.0.2.1:53"},
			{"example.org", "A", "cache NOERROR [example.org. 20 IN A 198.51.100.1] by 192.0.2.1:53"},
			{"outside.ns.svc.cluster.local", "A", "forward NOERROR [" +
				"outside.ns.svc.cluster.local. 30 IN CNAME www.example.org. " +
				"www.example.org. 20 IN A 198.51.100.1] outside ExternalName [] by 192.0.2.1:53"},
			{"example.org", "X", `type "X": unknown record type`},
			{"a..b", "A", `name "a..b": not a domain name`},
		} {
			e, err := s.Explain(t.Context(), c.name, c.qtype)
			var got string
			if err != nil {
				got = err.Error()
			} else {
				got = renderExplanation(e)
			}
			if got != c.want {
				t.Errorf("%s %s\ngot  %s\nwant %s", c.name, c.qtype, got, c.want)
			}
		}
	})
}

func TestExplainSearch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := forwarder(t, fakeServers{"192.0.2.1": func(n string, q *dns.Msg) []*dns.Msg {
			if q.Question[0].Name == "example.org." {
				return answering("198.51.100.1", 20)(n, q)
			}
			return failing(dns.RcodeNameError, 10)(n, q)
		}}, "192.0.2.1")
		defer f.Close()
		o := testOptions(testStore())
		o.Forward = f
		s := NewServer(o)
		defer s.Close()
		for _, c := range []struct{ name, want string }{
			{"web", "web.ns.svc.cluster.local. NOERROR []"},
			{"web.ns", "web.ns.svc.cluster.local. NOERROR [web.ns.ns.svc.cluster.local.]"},
			{"web.ns.svc", "web.ns.svc.cluster.local. NOERROR " +
				"[web.ns.svc.ns.svc.cluster.local. web.ns.svc.svc.cluster.local.]"},
			{"example.org", "example.org. NOERROR [example.org.ns.svc.cluster.local. example.org.svc.cluster.local. " +
				"example.org.cluster.local.]"},
			{"example.org.", "example.org. NOERROR []"},
			{"missing", "missing.ns.svc.cluster.local. NXDOMAIN " +
				"[missing.svc.cluster.local. missing.cluster.local. missing.]"},
			{"a.b.c.d.e.f", "a.b.c.d.e.f. NXDOMAIN [a.b.c.d.e.f.ns.svc.cluster.local. a.b.c.d.e.f.svc.cluster.local. " +
				"a.b.c.d.e.f.cluster.local.]"},
			{"10.96.0.10", "10.0.96.10.in-addr.arpa. NOERROR []"},
		} {
			e, err := s.ExplainSearch(t.Context(), c.name, "ns", "A")
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(e.Name, " ", e.Rcode, " ", e.Searched); got != c.want {
				t.Errorf("%s\ngot  %s\nwant %s", c.name, got, c.want)
			}
		}
		if _, err := s.ExplainSearch(t.Context(), "a..b", "ns", "A"); err == nil {
			t.Error("an invalid name is accepted")
		}
	})
}

func renderExplanation(e *Explanation) string {
	text := e.Source + " " + e.Rcode
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if len(e.Answers) > 0 {
		text += fmt.Sprint(" ", e.Answers)
	}
	for _, s := range e.Services {
		text += fmt.Sprint(" ", s.Name, " ", s.Type, " ", s.ClusterIPs)
		for _, at := range s.Endpoints {
			text += fmt.Sprintf(" %s=%t", at.Address, at.Ready)
		}
	}
	if e.Upstream != "" {
		text += " by " + e.Upstream
	}
	return text
}
