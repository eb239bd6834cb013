package dns

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// forwarding starts a server that forwards to fake servers.
func forwarding(t *testing.T, servers fakeServers, names ...string) *running {
	t.Helper()
	o := testOptions(testStore())
	o.Forward = forwarder(t, servers, names...)
	s := start(t, o, loopback(t), nil)
	t.Cleanup(o.Forward.Close) // before the end of the server, which waits for its queries
	return s
}

// TestServerForwards follows answers of an upstream server through the server: its sections and flags, the
// spelling of the name, and the cache.
func TestServerForwards(t *testing.T) {
	t.Parallel()
	var count atomic.Int32
	s := forwarding(t, fakeServers{"192.0.2.1": func(_ string, q *dns.Msg) []*dns.Msg {
		count.Add(1)
		m := answerOf(q, "198.51.100.1", 20)
		m.Authoritative, m.AuthenticatedData = true, true
		m.SetEdns0(4096, true)
		return []*dns.Msg{m}
	}}, "192.0.2.1")
	for i, c := range []struct {
		name    string
		do, ad  bool
		count   int32
		network string
	}{{"www.Example.org.", false, false, 1, "udp"}, {"WWW.example.org.", false, true, 1, "tcp"},
		{"www.example.org.", true, false, 2, "udp"}} {
		m := queryFor(c.name, dns.TypeA)
		m.AuthenticatedData = c.ad
		if c.do {
			m.SetEdns0(1232, true)
		}
		a := s.exchange(t, c.network, m)
		if len(a.Answer) != 1 || a.Answer[0].Header().Name != c.name || a.Question[0].Name != c.name ||
			a.Authoritative || !a.RecursionAvailable || a.AuthenticatedData != (c.do || c.ad) {
			t.Errorf("%d: %v", i, a)
		}
		if opt := a.IsEdns0(); (opt != nil) != c.do || opt != nil && opt.UDPSize() != udpSize {
			t.Errorf("%d: OPT record %v", i, opt)
		}
		if got := count.Load(); got != c.count {
			t.Errorf("%d: %d requests", i, got)
		}
	}
}

// TestServerFollowsAliases: an alias of a name elsewhere has its addresses, is an alias alone if the name does
// not exist, and fails if the upstream server does.
func TestServerFollowsAliases(t *testing.T) {
	t.Parallel()
	server := answering("198.51.100.1", 20)
	s := forwarding(t, fakeServers{"192.0.2.1": func(n string, q *dns.Msg) []*dns.Msg {
		switch q.Question[0].Qtype {
		case dns.TypeA:
			return server(n, q)
		case dns.TypeAAAA:
			return failing(dns.RcodeNameError, 10)(n, q)
		}
		return failing(dns.RcodeServerFailure, 0)(n, q)
	}}, "192.0.2.1")
	for _, c := range []struct {
		qtype   uint16
		rcode   int
		answers int
	}{{dns.TypeA, dns.RcodeSuccess, 2}, {dns.TypeAAAA, dns.RcodeSuccess, 1}, {dns.TypeCNAME, dns.RcodeSuccess, 1}} {
		a := s.exchange(t, "udp", queryFor("outside.ns.svc.cluster.local", c.qtype))
		if a.Rcode != c.rcode || len(a.Answer) != c.answers || !a.Authoritative {
			t.Errorf("type %d: %v", c.qtype, a)
		}
	}
	failed := forwarding(t, fakeServers{"192.0.2.1": failing(dns.RcodeServerFailure, 0)}, "192.0.2.1")
	a := failed.exchange(t, "udp", queryFor("outside.ns.svc.cluster.local", dns.TypeA))
	if a.Rcode != dns.RcodeServerFailure || len(a.Answer) != 0 {
		t.Error(a)
	}
}

// TestWaitingQueriesAreLimited: a client that makes too many queries wait for upstream servers is refused, and
// still gets answers about the cluster. Another client is not refused.
func TestWaitingQueriesAreLimited(t *testing.T) {
	t.Parallel()
	s := forwarding(t, fakeServers{"192.0.2.1": silent}, "192.0.2.1")
	dial := func(from string) *dns.Conn {
		local, remote := &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(s.address)
		conn, err := net.DialUDP("udp", local, remote)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return &dns.Conn{Conn: conn}
	}
	greedy := dial("127.0.0.1")
	for i := range maxForwardedEach + 1 {
		if err := greedy.WriteMsg(queryFor(fmt.Sprintf("%d.example.org", i), dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := greedy.ReadMsg(); err != nil || a.Rcode != dns.RcodeRefused {
		t.Fatal(a, err)
	}
	if err := greedy.WriteMsg(queryFor("web.ns.svc.cluster.local", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if a, err := greedy.ReadMsg(); err != nil || a.Rcode != dns.RcodeSuccess {
		t.Fatal(a, err)
	}
	other := dial("127.0.0.2")
	if err := other.WriteMsg(queryFor("0.example.org", dns.TypeA)); err != nil { // shares the request of the other
		t.Fatal(err)
	}
	s.forward.Close()
	if a, err := other.ReadMsg(); err != nil || a.Rcode != dns.RcodeServerFailure {
		t.Fatal(a, err)
	}
}

// TestLoopIsRefused: an upstream server that forwards to this server is refused at once, so that it can ask
// another one. The answer of the next upstream server is used.
func TestLoopIsRefused(t *testing.T) {
	t.Parallel()
	var s *running
	refused := make(chan struct{}, 100)
	s = forwarding(t, fakeServers{"127.0.0.1": func(_ string, q *dns.Msg) []*dns.Msg {
		client := dns.Client{Timeout: patience}
		if a, _, err := client.Exchange(queryFor(q.Question[0].Name, dns.TypeA).SetEdns0(1232, false),
			s.address.String()); err == nil && a.Rcode == dns.RcodeRefused {
			refused <- struct{}{}
		}
		return failing(dns.RcodeServerFailure, 0)("", q)
	}, "192.0.2.2": answering("198.51.100.2", 20)}, "127.0.0.1", "192.0.2.2")
	if a := s.exchange(t, "tcp", queryFor("example.org", dns.TypeA)); len(a.Answer) != 1 {
		t.Error(a)
	}
	// On a busy machine, the next upstream server is asked, and answers, before the first has been refused.
	select {
	case <-refused:
	case <-time.After(patience):
		t.Error("the query of the loop was not refused")
	}
}

// TestAnswersOvertakeOnAConnection: a query that waits for an upstream server does not delay the next one of
// its connection.
func TestAnswersOvertakeOnAConnection(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := forwarding(t, fakeServers{"192.0.2.1": func(n string, q *dns.Msg) []*dns.Msg {
		<-release
		return answering("198.51.100.1", 20)(n, q)
	}}, "192.0.2.1")
	conn, err := dns.DialTimeout("tcp", s.address.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example.org", "web.ns.svc.cluster.local"} {
		if err := conn.WriteMsg(queryFor(name, dns.TypeA)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"10.96.0.10", "198.51.100.1"} {
		a, err := conn.ReadMsg()
		if err != nil || len(a.Answer) != 1 || a.Answer[0].(*dns.A).A.String() != want {
			t.Fatalf("want %s: %v %v", want, a, err)
		}
		if want == "10.96.0.10" {
			close(release)
		}
	}
}
