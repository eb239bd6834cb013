package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"berth/services"
)

// patience is how long a test waits for something that happens at once.
const patience = 30 * time.Second

// running is a server of a test.
type running struct {
	*Server
	address netip.AddrPort
	// files are descriptors of its sockets.
	files []*os.File
	// stop ends the server and waits for its end.
	stop func()
}

// loopback is an address with a free port.
func loopback(t *testing.T) []netip.AddrPort {
	t.Helper()
	return []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
}

func testOptions(store *services.Store) Options {
	return Options{Domain: "cluster.local", Store: store, Addresses: addrs("10.96.0.2"),
		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry())}
}

// start runs a server until the end of the test.
func start(t *testing.T, o Options, addresses []netip.AddrPort, files []*os.File) *running {
	t.Helper()
	sockets, err := open(addresses, files)
	if err != nil {
		t.Fatal(err)
	}
	held, err := sockets.Files()
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, sockets) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error("Serve:", err)
		}
		s.Close()
	})
	t.Cleanup(func() {
		stop()
		for _, f := range held {
			f.Close()
		}
	})
	return &running{s, sockets.Addresses()[0], held, stop}
}

// open opens sockets. The free port that UDP got may be in use for TCP: then it tries again.
func open(addresses []netip.AddrPort, files []*os.File) (s *Sockets, err error) {
	for range 20 {
		if s, err = Open(addresses, files); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return s, err
}

// exchange sends a message to a server and returns its answer.
func (r *running) exchange(t *testing.T, network string, m *dns.Msg) *dns.Msg {
	t.Helper()
	client := dns.Client{Net: network, Timeout: patience}
	a, _, err := client.Exchange(m, r.address.String())
	if err != nil {
		t.Fatalf("%s: %v", network, err)
	}
	return a
}

func queryFor(name string, qtype uint16) *dns.Msg {
	m := &dns.Msg{}
	m.SetQuestion(dns.Fqdn(name), qtype)
	return m
}

func TestServerAnswersOverUDPAndTCP(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		s := start(t, testOptions(testStore()), []netip.AddrPort{netip.MustParseAddrPort(address)}, nil)
		for _, network := range []string{"udp", "tcp"} {
			m := queryFor("Web.ns.svc.cluster.local", dns.TypeA)
			m.SetEdns0(4096, true)
			a := s.exchange(t, network, m)
			if len(a.Answer) != 1 || a.Answer[0].String() != "Web.ns.svc.cluster.local.\t30\tIN\tA\t10.96.0.10" {
				t.Errorf("%s %s: %v", address, network, a)
			}
			opt := a.IsEdns0()
			if !a.Authoritative || !a.RecursionAvailable || !a.RecursionDesired || opt == nil || !opt.Do() {
				t.Errorf("%s %s: %v", address, network, a)
			}
			if a := s.exchange(t, network, queryFor("10.0.96.10.in-addr.arpa", dns.TypePTR)); len(a.Answer) != 1 {
				t.Errorf("%s %s: %v", address, network, a)
			}
		}
	}
}

func TestServerRejectsInvalidQueries(t *testing.T) {
	t.Parallel()
	s := start(t, testOptions(testStore()), loopback(t), nil)
	for _, c := range []struct {
		name   string
		change func(*dns.Msg)
		rcode  int
	}{
		{"another operation", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		{"no question", func(m *dns.Msg) { m.Question = nil }, dns.RcodeFormatError},
		{"two questions", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeFormatError},
		{"class CHAOS", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		{"a version of EDNS to come", func(m *dns.Msg) { m.SetEdns0(4096, false).IsEdns0().SetVersion(1) },
			dns.RcodeBadVers},
		{"a name elsewhere without forwarding", func(m *dns.Msg) { m.Question[0].Name = "example.org." },
			dns.RcodeRefused},
		{"a zone transfer", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }, dns.RcodeRefused},
	} {
		m := queryFor("web.ns.svc.cluster.local", dns.TypeA)
		c.change(m)
		if a := s.exchange(t, "tcp", m); a.Rcode != c.rcode {
			t.Errorf("%s: %s", c.name, dns.RcodeToString[a.Rcode])
		}
	}
}

// TestServerIgnoresAnswers: an answer to an answer could go on for ever.
func TestServerIgnoresAnswers(t *testing.T) {
	t.Parallel()
	s := start(t, testOptions(testStore()), loopback(t), nil)
	conn, err := net.Dial("udp", s.address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ignored := queryFor("web.ns.svc.cluster.local", dns.TypeA)
	ignored.Response = true
	query := queryFor("web.ns.svc.cluster.local", dns.TypeA)
	for _, m := range []*dns.Msg{ignored, query} {
		packed, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range [][]byte{packed[:5], packed} { // the first is no message
			if _, err := conn.Write(part); err != nil {
				t.Fatal(err)
			}
		}
	}
	a, err := (&dns.Conn{Conn: conn}).ReadMsg()
	if err != nil || a.Id != query.Id {
		t.Errorf("%v %v", a, err)
	}
}

func TestServerTruncatesLargeAnswers(t *testing.T) {
	t.Parallel()
	store := testStore()
	slice := &services.Slice{Service: named("db"), Name: "large", Ports: []services.EndpointPort{{Port: 1}}}
	for i := range 200 {
		slice.Endpoints = append(slice.Endpoints, services.Endpoint{
			Address: netip.AddrFrom4([4]byte{11, 0, 0, byte(i)}), Ready: true})
	}
	store.SetSlice(slice)
	s := start(t, testOptions(store), loopback(t), nil)
	for _, c := range []struct {
		size uint16 // of EDNS
		most int
	}{{0, dns.MinMsgSize}, {100, dns.MinMsgSize}, {1000, 1000}, {8192, udpSize}} {
		m := queryFor("db.ns.svc.cluster.local", dns.TypeA)
		if c.size > 0 {
			m.SetEdns0(c.size, false)
		}
		conn, err := net.Dial("udp", s.address.String())
		if err != nil {
			t.Fatal(err)
		}
		packed, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(packed); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, dns.MaxMsgSize)
		n, err := conn.Read(buf)
		conn.Close()
		var a dns.Msg
		if err != nil || a.Unpack(buf[:n]) != nil {
			t.Fatal(err)
		}
		if n > c.most || !a.Truncated || len(a.Answer) == 0 {
			t.Errorf("EDNS size %d: %d bytes, TC %t, %d records", c.size, n, a.Truncated, len(a.Answer))
		}
	}
	if a := s.exchange(t, "tcp", queryFor("db.ns.svc.cluster.local", dns.TypeA)); len(a.Answer) != 203 || a.Truncated {
		t.Errorf("TCP: %d records, TC %t", len(a.Answer), a.Truncated)
	}
}

// TestServerAnswersFromTheAddressAsked: a socket for all addresses answers from the one that was asked,
// because a connected socket of a client drops everything else.
func TestServerAnswersFromTheAddressAsked(t *testing.T) {
	t.Parallel()
	for unspecified, asked := range map[string]string{"0.0.0.0:0": "127.0.0.77", "[::]:0": "::1"} {
		s := start(t, testOptions(testStore()), []netip.AddrPort{netip.MustParseAddrPort(unspecified)}, nil)
		s.address = netip.AddrPortFrom(netip.MustParseAddr(asked), s.address.Port())
		if a := s.exchange(t, "udp", queryFor("web.ns.svc.cluster.local", dns.TypeA)); len(a.Answer) != 1 {
			t.Error(a)
		}
	}
}

// TestQueriesWaitForASuccessor: queries that arrive while no server runs are answered by the next one,
// which gets the sockets.
func TestQueriesWaitForASuccessor(t *testing.T) {
	t.Parallel()
	store := testStore()
	first := start(t, testOptions(store), loopback(t), nil)
	first.exchange(t, "udp", queryFor("web.ns.svc.cluster.local", dns.TypeA))
	first.stop()

	const count = 50
	var conns []*dns.Conn
	for _, network := range []string{"udp", "tcp"} {
		for range count {
			conn, err := dns.DialTimeout(network, first.address.String(), patience)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.WriteMsg(queryFor("web.ns.svc.cluster.local", dns.TypeA)); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
	}
	second := start(t, testOptions(store), []netip.AddrPort{first.address}, first.files)
	if second.address != first.address {
		t.Errorf("address %v, before %v", second.address, first.address)
	}
	for i, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if a, err := conn.ReadMsg(); err != nil || len(a.Answer) != 1 {
			t.Fatalf("query %d: %v %v", i, a, err)
		}
	}
}

// TestOpenTakesWantedSockets: a socket for another address is closed, a missing one is opened.
func TestOpenTakesWantedSockets(t *testing.T) {
	t.Parallel()
	// No other test uses this address.
	first, err := open(append(loopback(t), netip.MustParseAddrPort("127.0.0.88:0")), nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := first.Files()
	if err != nil {
		t.Fatal(err)
	}
	keep, drop := first.Addresses()[0], first.Addresses()[1]
	first.Close()
	second, err := open([]netip.AddrPort{keep, netip.MustParseAddrPort("[::1]:0")}, files)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if got := second.Addresses(); len(got) != 2 || got[0] != keep || !got[1].Addr().Is6() {
		t.Errorf("addresses %v, kept %v", got, keep)
	}
	for _, network := range []string{"udp", "tcp"} {
		if network == "udp" {
			conn, err := net.ListenPacket("udp4", drop.String())
			if err != nil {
				t.Error("the other socket is still open:", err)
				continue
			}
			conn.Close()
			continue
		}
		l, err := net.Listen("tcp4", drop.String())
		if err != nil {
			t.Error("the other socket is still open:", err)
			continue
		}
		l.Close()
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(nil, []*os.File{file}); err == nil {
		t.Error("a file that is no socket is accepted")
	}
}

// TestUnassignedAddress: the address of the server need not exist when the socket is opened.
func TestUnassignedAddress(t *testing.T) {
	t.Parallel()
	s, err := open([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:0"),
		netip.MustParseAddrPort("[2001:db8::53]:0")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}

// TestConnectionLimit: a client with all its connections gets no more until one ends.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	s := start(t, testOptions(testStore()), loopback(t), nil)
	query := queryFor("web.ns.svc.cluster.local", dns.TypeA)
	var conns []*dns.Conn
	for i := range maxConnectionsEach + 1 {
		conn, err := dns.DialTimeout("tcp", s.address.String(), patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		_ = conn.SetDeadline(time.Now().Add(patience))
		err = conn.WriteMsg(query)
		if err == nil {
			_, err = conn.ReadMsg()
		}
		if ok := i < maxConnectionsEach; ok != (err == nil) {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	conns[0].Close()
	for deadline := time.Now().Add(patience); ; {
		conn, err := dns.DialTimeout("tcp", s.address.String(), patience)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		if err = conn.WriteMsg(query); err == nil {
			_, err = conn.ReadMsg()
		}
		conn.Close()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("no connection after another has ended:", err)
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	l := newLimits(3, 2)
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for i, c := range []struct {
		client netip.Addr
		want   bool
	}{{a, true}, {a, true}, {a, false}, {b, true}, {b, false}} {
		if got := l.acquire(c.client); got != c.want {
			t.Errorf("%d: %t", i, got)
		}
	}
	l.release(a)
	if !l.acquire(b) {
		t.Error("a released place is not free")
	}
	l.release(a)
	l.release(b)
	l.release(b)
	if l.count != 0 || len(l.by) != 0 {
		t.Error(l.count, l.by)
	}
}

// TestServerEndsWithOpenConnections: the end of the server closes idle connections.
func TestServerEndsWithOpenConnections(t *testing.T) {
	t.Parallel()
	s := start(t, testOptions(testStore()), loopback(t), nil)
	conn, err := dns.DialTimeout("tcp", s.address.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// A connection that the server has not accepted stays open: the next process with the socket accepts it.
	if err := conn.WriteMsg(queryFor("web.ns.svc.cluster.local", dns.TypeA)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ReadMsg(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Error("the connection is open:", err)
	}
}
