package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// fakeServers are upstream servers by their address. A server returns the messages that it sends to a
// query; none: it is silent.
type fakeServers map[string]func(network string, q *dns.Msg) []*dns.Msg

// dial connects to a fake server. A server that does not exist refuses connections.
func (f fakeServers) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	server := f[to.Addr().String()]
	if server == nil {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		buf := make([]byte, dns.MaxMsgSize)
		for {
			var n int
			var err error
			if network == "tcp" {
				buf, err = readTCP(there)
				n = len(buf)
			} else {
				n, err = there.Read(buf)
			}
			q := &dns.Msg{}
			if err != nil || q.Unpack(buf[:n]) != nil {
				return
			}
			for _, m := range server(network, q) {
				packed, err := m.Pack()
				if err != nil {
					panic(err)
				}
				if network == "tcp" {
					packed = withLength(packed)
				}
				if _, err := there.Write(packed); err != nil {
					return
				}
			}
		}
	}()
	return here, nil
}

// answering returns a server that answers each query with an A record.
func answering(address string, ttl uint32) func(string, *dns.Msg) []*dns.Msg {
	return func(_ string, q *dns.Msg) []*dns.Msg { return []*dns.Msg{answerOf(q, address, ttl)} }
}

func answerOf(q *dns.Msg, address string, ttl uint32) *dns.Msg {
	m := (&dns.Msg{}).SetReply(q)
	m.Answer = []dns.RR{&dns.A{Hdr: header(q.Question[0].Name, dns.TypeA, ttl), A: net.ParseIP(address)}}
	return m
}

// failing returns a server that answers each query with an rcode, and with a SOA record if ttl is not 0.
func failing(rcode int, ttl uint32) func(string, *dns.Msg) []*dns.Msg {
	return func(_ string, q *dns.Msg) []*dns.Msg {
		m := (&dns.Msg{}).SetRcode(q, rcode)
		if ttl > 0 {
			m.Ns = []dns.RR{&dns.SOA{Hdr: header("org.", dns.TypeSOA, 3600), Ns: "a.", Mbox: "b.", Minttl: ttl}}
		}
		return []*dns.Msg{m}
	}
}

func silent(string, *dns.Msg) []*dns.Msg { return nil }

// forwarder returns a Forwarder to the servers of a resolv.conf. Close it.
func forwarder(t *testing.T, servers fakeServers, names ...string) *Forwarder {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	writeResolvConf(t, path, names...)
	own := func(a netip.Addr) bool { return a.String() == "10.96.0.2" }
	return NewForwarder(ForwardOptions{ResolvConf: path, Own: own, Log: slog.New(slog.DiscardHandler),
		dial: servers.dial})
}

func writeResolvConf(t *testing.T, path string, names ...string) {
	t.Helper()
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintln(&text, "nameserver", name)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ask asks as the server does and renders the answer: its rcode, addresses and the least TTL, and where
// it comes from.
func ask(f *Forwarder, name string) string {
	q := question{name: name, qtype: dns.TypeA}
	r, ok := f.cached(q)
	if !ok {
		var err error
		if r, err = f.resolve(context.Background(), q); err != nil {
			return err.Error()
		}
	}
	out := []string{dns.RcodeToString[r.message.Rcode]}
	for _, rr := range r.message.Answer {
		out = append(out, fmt.Sprintf("%v ttl %d", rr.(*dns.A).A, rr.Header().Ttl))
	}
	if r.cached {
		out = append(out, "cached")
	}
	if r.stale {
		out = append(out, "stale")
	}
	return strings.Join(out, " ")
}

func TestForward(t *testing.T) {
	t.Parallel()
	one := func(server func(string, *dns.Msg) []*dns.Msg) fakeServers { return fakeServers{"192.0.2.1": server} }
	for _, c := range []struct {
		name    string
		servers fakeServers
		want    string
		took    time.Duration
	}{
		{"an answer", one(answering("198.51.100.1", 20)), "NOERROR 198.51.100.1 ttl 20", 0},
		{"a TTL is limited", one(answering("198.51.100.1", 3600)), "NOERROR 198.51.100.1 ttl 30", 0},
		{"a name that does not exist", one(failing(dns.RcodeNameError, 10)), "NXDOMAIN", 0},
		{"a server that refuses", one(failing(dns.RcodeRefused, 0)), "REFUSED", 0},
		{"a server that fails", one(failing(dns.RcodeServerFailure, 0)), "upstream server 192.0.2.1:53: SERVFAIL", 0},
		{"a silent server", one(silent), errTimeout.Error(), forwardTimeout},
		{"no server", fakeServers{}, "upstream server 192.0.2.1:53: connection refused", 0},
		{"the second server, when the first is silent",
			fakeServers{"192.0.2.1": silent, "192.0.2.2": answering("198.51.100.2", 20)},
			"NOERROR 198.51.100.2 ttl 20", attemptEvery},
		{"the second server, when the first does not exist", fakeServers{"192.0.2.2": answering("198.51.100.2", 20)},
			"NOERROR 198.51.100.2 ttl 20", 0},
		{"the second server, when the first fails",
			fakeServers{"192.0.2.1": failing(dns.RcodeServerFailure, 0), "192.0.2.2": answering("198.51.100.2", 20)},
			"NOERROR 198.51.100.2 ttl 20", 0},
		{"TCP for a truncated answer", one(func(network string, q *dns.Msg) []*dns.Msg {
			m := answerOf(q, "198.51.100.1", 20)
			if m.Truncated = network == "udp"; m.Truncated {
				m.Answer = nil
			}
			return []*dns.Msg{m}
		}), "NOERROR 198.51.100.1 ttl 20", 0},
		{"a server without EDNS", one(func(_ string, q *dns.Msg) []*dns.Msg {
			if q.IsEdns0() != nil {
				return []*dns.Msg{(&dns.Msg{}).SetRcodeFormatError(q)}
			}
			return []*dns.Msg{answerOf(q, "198.51.100.1", 20)}
		}), "NOERROR 198.51.100.1 ttl 20", 0},
		{"answers to other questions before the right one", one(func(_ string, q *dns.Msg) []*dns.Msg {
			id, name, kind, noAnswer := answerOf(q, "203.0.113.1", 20), answerOf(q, "203.0.113.2", 20),
				answerOf(q, "203.0.113.3", 20), answerOf(q, "203.0.113.4", 20)
			id.Id++
			name.Question[0].Name = "evil.example.org."
			kind.Question = []dns.Question{{Name: q.Question[0].Name, Qtype: dns.TypeAAAA, Qclass: dns.ClassINET}}
			noAnswer.Response = false
			return []*dns.Msg{id, name, kind, noAnswer, answerOf(q, "198.51.100.1", 20)}
		}), "NOERROR 198.51.100.1 ttl 20", 0},
		{"a lie over TCP", one(func(network string, q *dns.Msg) []*dns.Msg {
			m := answerOf(q, "198.51.100.1", 20)
			if m.Truncated = network == "udp"; !m.Truncated {
				m.Id++
			}
			return []*dns.Msg{m}
		}), "upstream server 192.0.2.1:53: the answer does not belong to the question", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := forwarder(t, c.servers, "192.0.2.1", "192.0.2.2")
				if len(c.servers) == 1 && c.servers["192.0.2.2"] == nil {
					writeResolvConf(t, f.upstreams.path, "192.0.2.1")
				}
				defer f.Close()
				began := time.Now()
				if got := ask(f, "example.org."); got != c.want {
					t.Errorf("got  %s\nwant %s", got, c.want)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
			})
		})
	}
}

// TestCacheTimes follows one name through its life in the cache.
func TestCacheTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var server atomic.Pointer[func(string, *dns.Msg) []*dns.Msg]
		current := func(network string, q *dns.Msg) []*dns.Msg { return (*server.Load())(network, q) }
		f := forwarder(t, fakeServers{"192.0.2.1": current}, "192.0.2.1")
		defer f.Close()
		for _, step := range []struct {
			what   string
			after  time.Duration
			server func(string, *dns.Msg) []*dns.Msg
			want   string
		}{
			{"first", 0, answering("198.51.100.1", 20), "NOERROR 198.51.100.1 ttl 20"},
			{"from the cache", 5 * time.Second, silent, "NOERROR 198.51.100.1 ttl 15 cached"},
			{"expired", 16 * time.Second, answering("198.51.100.2", 10), "NOERROR 198.51.100.2 ttl 10"},
			{"expired, and the server is silent", 11 * time.Second, silent, "NOERROR 198.51.100.2 ttl 30 cached stale"},
			{"the next attempt is answered", 0, answering("198.51.100.3", 10), "NOERROR 198.51.100.3 ttl 10"},
			{"expired, and the server fails", 11 * time.Second, failing(dns.RcodeServerFailure, 0),
				"NOERROR 198.51.100.3 ttl 30 cached stale"},
			{"it is not asked again at once", time.Second, answering("198.51.100.4", 10),
				"NOERROR 198.51.100.3 ttl 30 cached stale"},
			{"then it is", 5 * time.Second, answering("198.51.100.4", 10), "NOERROR 198.51.100.4 ttl 10"},
			{"expired, and the server refuses", 10 * time.Second, failing(dns.RcodeRefused, 0),
				"NOERROR 198.51.100.4 ttl 30 cached stale"},
			{"the name is gone", 10 * time.Second, failing(dns.RcodeNameError, 7), "NXDOMAIN"},
			{"this is cached", 6 * time.Second, answering("198.51.100.5", 10), "NXDOMAIN cached"},
			{"until the SOA record ends it", time.Second, answering("198.51.100.5", 10), "NOERROR 198.51.100.5 ttl 10"},
			{"too old", 10*time.Second + maxStale, failing(dns.RcodeServerFailure, 0),
				"upstream server 192.0.2.1:53: SERVFAIL"},
			{"a failure is cached", 4 * time.Second, answering("198.51.100.6", 0), "SERVFAIL cached"},
			{"for a short time", time.Second, answering("198.51.100.6", 0), "NOERROR 198.51.100.6 ttl 0"},
			{"TTL 0 is not cached", 0, answering("198.51.100.7", 0), "NOERROR 198.51.100.7 ttl 0"},
			{"a denial without SOA", 0, failing(dns.RcodeNameError, 0), "NXDOMAIN"},
			{"is not cached", 0, answering("198.51.100.8", 1), "NOERROR 198.51.100.8 ttl 1"},
		} {
			time.Sleep(step.after) // in the time of the bubble
			server.Store(&step.server)
			if got := ask(f, "example.org."); got != step.want {
				t.Errorf("%s:\ngot  %s\nwant %s", step.what, got, step.want)
			}
		}
	})
}

// TestEqualQuestionsShareAnAnswer: 100 clients make the server ask once, and each gets a message of its
// own.
func TestEqualQuestionsShareAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var count atomic.Int32
		release := make(chan struct{})
		f := forwarder(t, fakeServers{"192.0.2.1": func(_ string, q *dns.Msg) []*dns.Msg {
			count.Add(1)
			<-release
			return []*dns.Msg{answerOf(q, "198.51.100.1", 20)}
		}}, "192.0.2.1")
		defer f.Close()
		var all sync.WaitGroup
		messages := make([]*dns.Msg, 100)
		for i := range messages {
			all.Go(func() {
				r, err := f.resolve(t.Context(), question{name: "example.org.", qtype: dns.TypeA})
				if err != nil {
					t.Error(err)
				}
				messages[i] = r.message
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		if n := count.Load(); n != 1 {
			t.Errorf("%d requests", n)
		}
		if messages[0] == messages[1] {
			t.Error("clients share a message")
		}
	})
}

// TestLoopEnds: an upstream server that asks this server gets no answer, and nothing multiplies.
func TestLoopEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var count atomic.Int32
		var f *Forwarder
		f = forwarder(t, fakeServers{"192.0.2.1": func(_ string, q *dns.Msg) []*dns.Msg {
			count.Add(1)
			r, err := f.resolve(t.Context(), question{name: q.Question[0].Name, qtype: dns.TypeA})
			if err != nil {
				return failing(dns.RcodeServerFailure, 0)("", q)
			}
			r.message.Id = q.Id
			return []*dns.Msg{r.message}
		}}, "192.0.2.1")
		defer f.Close()
		if got := ask(f, "example.org."); got != errTimeout.Error() {
			t.Error(got)
		}
		if n := count.Load(); n != minAttempts {
			t.Errorf("%d requests", n)
		}
	})
}

// TestHealth: a server that has failed twice is asked last until its time has passed.
func TestHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := forwarder(t, fakeServers{"192.0.2.1": silent, "192.0.2.2": answering("198.51.100.2", 1)},
			"192.0.2.1", "192.0.2.2")
		defer f.Close()
		for i, want := range []time.Duration{attemptEvery, attemptEvery, 0, 0} {
			began := time.Now()
			if got := ask(f, fmt.Sprintf("%d.example.org.", i)); got != "NOERROR 198.51.100.2 ttl 1" {
				t.Error(got)
			}
			if took := time.Since(began); took != want {
				t.Errorf("query %d took %v, want %v", i, took, want)
			}
		}
		time.Sleep(maxDown)
		began := time.Now()
		if ask(f, "last.example.org."); time.Since(began) != attemptEvery {
			t.Error("the first server is not asked again")
		}
	})
}

// TestFlagsPassOn: DO and CD are asked of the server, and answers with them are distinct.
func TestFlagsPassOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		f := forwarder(t, fakeServers{"192.0.2.1": func(_ string, q *dns.Msg) []*dns.Msg {
			got = append(got, fmt.Sprint(q.IsEdns0().Do(), q.CheckingDisabled))
			return []*dns.Msg{answerOf(q, "198.51.100.1", 20)}
		}}, "192.0.2.1")
		defer f.Close()
		for _, q := range []question{{do: true}, {cd: true}, {do: true}} {
			q.name, q.qtype = "example.org.", dns.TypeA
			if _, ok := f.cached(q); ok {
				continue
			}
			if _, err := f.resolve(t.Context(), q); err != nil {
				t.Error(err)
			}
		}
		if want := "[true false false true]"; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %s", got, want)
		}
	})
}

// TestCacheIsBounded: many answers leave the cache within its limit, and the one that is used stays.
func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	evicted := 0
	c := newCache(20_000, func(bool) { evicted++ })
	used := question{name: "used.example.org.", qtype: dns.TypeA}
	now := time.Now()
	put := func(q question, rcode int) {
		m := answerOf((&dns.Msg{}).SetQuestion(q.name, q.qtype), "198.51.100.1", 20)
		if m.Rcode = rcode; rcode != dns.RcodeSuccess {
			m = failing(rcode, 20)("", (&dns.Msg{}).SetQuestion(q.name, q.qtype))[0]
		}
		c.put(newEntry(q, m, "", now))
	}
	put(used, dns.RcodeSuccess)
	for i := range 1000 {
		rcode := []int{dns.RcodeSuccess, dns.RcodeNameError}[i%2]
		put(question{name: fmt.Sprintf("%d.example.org.", i), qtype: dns.TypeA}, rcode)
		if c.get(used) == nil {
			t.Fatalf("after %d answers, the one that is used is gone", i)
		}
	}
	success, denial := c.count()
	bytes := 0
	for at := c.order.Front(); at != nil; at = at.Next() {
		bytes += at.Value.(*entry).size()
	}
	if bytes != c.bytes || bytes > 20_000 || bytes < 19_000 || success+denial+evicted != 1001 || denial < 10 ||
		c.order.Len() != success+denial {
		t.Errorf("%d bytes (counted %d), %d and %d entries, %d evicted", bytes, c.bytes, success, denial, evicted)
	}
	c.put(&entry{key: used, message: make([]byte, 30_000)})
	if c.get(used) != nil || c.bytes > 20_000 {
		t.Error("an answer larger than the cache is cached")
	}
}

func TestSelectUpstreams(t *testing.T) {
	t.Parallel()
	own := func(a netip.Addr) bool { return a.String() == "10.96.0.2" }
	for _, c := range []struct {
		name, servers, resolved, use, refused string
	}{
		{"as in the file", "192.0.2.1 2001:db8::1 192.0.2.1", "", "192.0.2.1,2001:db8::1", ""},
		{"the stub is replaced", "127.0.0.53", "192.0.2.7 192.0.2.8", "192.0.2.7,192.0.2.8", ""},
		{"the stub beside others", "192.0.2.1 127.0.0.53 192.0.2.2", "192.0.2.7", "192.0.2.1,192.0.2.7,192.0.2.2", ""},
		{"both stubs", "127.0.0.53 127.0.0.54", "192.0.2.7", "192.0.2.7", ""},
		{"a stub that resolved uses itself", "127.0.0.53", "127.0.0.53", "", "127.0.0.53"},
		{"the server itself", "10.96.0.2 192.0.2.1", "", "192.0.2.1", "10.96.0.2"},
		{"the server itself behind resolved", "127.0.0.53", "10.96.0.2", "", "10.96.0.2"},
		{"the server itself as IPv6", "::ffff:10.96.0.2", "", "", "::ffff:10.96.0.2"},
		{"the unspecified address", "0.0.0.0", "", "", "0.0.0.0"},
		{"another server on loopback", "127.0.0.1", "", "127.0.0.1", ""},
	} {
		resolved := func() []netip.Addr { return addrs(strings.Fields(c.resolved)...) }
		use, refused := selectUpstreams(addrs(strings.Fields(c.servers)...), resolved, own)
		if joinAddresses(use) != c.use || joinAddresses(refused) != c.refused {
			t.Errorf("%s: got %v, refused %v", c.name, use, refused)
		}
	}
}

func TestParseResolvConf(t *testing.T) {
	t.Parallel()
	got := parseResolvConf([]byte("# nameserver 192.0.2.9\nsearch example.org\n nameserver\t192.0.2.1 \n" +
		"nameserver fe80::1%eth0\nnameserver host.example.org\nnameserver\noptions ndots:5\nnameserver 192.0.2.1\n"))
	if joinAddresses(got) != "192.0.2.1,fe80::1%eth0" {
		t.Error(got)
	}
}

// TestResolvConfChanges: other servers are used some seconds after the file has changed, and those of
// before while it is gone.
func TestResolvConfChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := forwarder(t, fakeServers{"192.0.2.1": answering("198.51.100.1", 0),
			"192.0.2.2": answering("198.51.100.2", 0)}, "192.0.2.1")
		defer f.Close()
		check := func(want string) {
			t.Helper()
			time.Sleep(checkEvery)
			if got := ask(f, "example.org."); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		check("NOERROR 198.51.100.1 ttl 0")
		writeResolvConf(t, f.upstreams.path, "192.0.2.2")
		check("NOERROR 198.51.100.2 ttl 0")
		if err := os.Remove(f.upstreams.path); err != nil {
			t.Fatal(err)
		}
		check("NOERROR 198.51.100.2 ttl 0")
		writeResolvConf(t, f.upstreams.path, "10.96.0.2")
		check(errNoUpstreams.Error())
	})
}

// TestCloseEndsQuestions: the end does not wait for silent servers.
func TestCloseEndsQuestions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := forwarder(t, fakeServers{"192.0.2.1": silent}, "192.0.2.1")
		done := make(chan string, 1)
		go func() { done <- ask(f, "example.org.") }()
		synctest.Wait()
		began := time.Now()
		f.Close()
		if got := <-done; !strings.Contains(got, "canceled") || time.Since(began) != 0 {
			t.Errorf("%s after %v", got, time.Since(began))
		}
		if _, err := f.resolve(t.Context(), question{name: "example.org.", qtype: dns.TypeA}); err == nil {
			t.Error("a closed forwarder asks")
		}
	})
}
