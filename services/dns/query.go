package dns

import (
	"context"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"berth/services"
)

// incoming is a query of a client.
type incoming struct {
	client netip.Addr
	proto  string // udp or tcp
	size   int    // bytes
	// started is when the query was read.
	started time.Time
	msg     dns.Msg
	edns    *dns.OPT
	// zone and plugin are labels of the metrics: what has answered.
	zone, plugin string
}

// answer answers a query with one call of write, or with none if it is no query. Queries for upstream
// servers are answered later, in a goroutine of all, until ctx is done.
func (s *Server) answer(ctx context.Context, all *sync.WaitGroup, in *incoming, packed []byte, write func([]byte)) {
	in.started, in.zone = time.Now(), "."
	defer s.recover(in, write)
	if len(packed) < 12 || packed[2]&0x80 != 0 { // no header, or an answer
		return
	}
	if err := in.msg.Unpack(packed); err != nil {
		in.msg = dns.Msg{MsgHdr: dns.MsgHdr{Id: uint16(packed[0])<<8 | uint16(packed[1])}}
		s.send(in, in.failure(dns.RcodeFormatError), write)
		return
	}
	if rcode := in.check(); rcode != dns.RcodeSuccess {
		s.send(in, in.failure(rcode), write)
		return
	}
	q := in.msg.Question[0]
	if reply, target, _ := s.answerCluster(in, q); target != "" {
		s.later(all, in, write, func() *dns.Msg { return s.follow(ctx, in, reply, target) })
	} else if reply != nil {
		s.send(in, reply, write)
	} else if s.forward == nil {
		s.send(in, in.failure(dns.RcodeRefused), write)
	} else if cached, ok := s.lookup(in.question(q.Name)); ok {
		s.send(in, in.forwarded(cached), write)
	} else if s.forward.loops(in.question(q.Name), in.client) {
		s.send(in, in.failure(dns.RcodeRefused), write)
	} else {
		s.later(all, in, write, func() *dns.Msg {
			in.plugin = "forward"
			r, err := s.forward.resolve(ctx, in.question(q.Name))
			if err != nil {
				return in.failure(dns.RcodeServerFailure)
			}
			if r.stale {
				s.metrics.staleServed()
			}
			return in.forwarded(r)
		})
	}
}

// recover answers a query whose handling panics.
func (s *Server) recover(in *incoming, write func([]byte)) {
	if reason := recover(); reason != nil {
		s.metrics.panicked()
		s.log.Error("panic while answering a DNS query", "err", reason, "stack", string(debug.Stack()))
		s.send(in, in.failure(dns.RcodeServerFailure), write)
	}
}

// later answers a query in a goroutine, within the limits.
func (s *Server) later(all *sync.WaitGroup, in *incoming, write func([]byte),
	answer func() *dns.Msg) {
	if s.forward == nil || !s.queries.acquire(in.client) {
		s.metrics.tooManyQueries()
		s.send(in, in.failure(dns.RcodeRefused), write)
		return
	}
	all.Go(func() {
		defer s.queries.release(in.client)
		defer s.recover(in, write)
		s.send(in, answer(), write)
	})
}

// lookup answers a question from the cache.
func (s *Server) lookup(q question) (r reply, ok bool) {
	if r, ok = s.forward.cached(q); !ok {
		s.metrics.cacheLookup(nil)
		return r, false
	}
	s.metrics.cacheLookup(&r)
	if r.stale {
		s.metrics.staleServed()
	}
	return r, true
}

// answerCluster answers a question about the cluster, or returns nil. target is a name elsewhere that
// continues the answer, from are the Services that it comes from.
func (s *Server) answerCluster(in *incoming, q dns.Question) (m *dns.Msg, target string, from []services.Name) {
	qname := strings.ToLower(q.Name)
	var a Answer
	if s.zone.Contains(qname) {
		a = s.zone.Answer(q, s.serial.Load(), s.rotation.Add(1))
		in.zone = s.zone.Domain
	} else if address := reverseAddress(qname); q.Qtype == dns.TypePTR && address.IsValid() {
		if a = s.zone.AnswerPTR(q, address, s.reverse); len(a.Answer) == 0 {
			return nil, "", nil
		}
		in.zone = "in-addr.arpa."
		if address.Is6() {
			in.zone = "ip6.arpa."
		}
	} else {
		return nil, "", nil
	}
	in.plugin = "kubernetes"
	m = in.failure(a.Rcode)
	m.Authoritative = a.Rcode != dns.RcodeRefused
	m.Answer, m.Ns, m.Extra = a.Answer, a.Ns, a.Extra
	return m, a.Target, a.Services
}

// follow adds the addresses of an alias of a name elsewhere.
func (s *Server) follow(ctx context.Context, in *incoming, m *dns.Msg, target string) *dns.Msg {
	q := in.question(target)
	r, ok := s.lookup(q)
	if !ok {
		var err error
		if r, err = s.forward.resolve(ctx, q); err != nil {
			return in.failure(dns.RcodeServerFailure)
		}
		if r.stale {
			s.metrics.staleServed()
		}
	}
	if rcode := r.message.Rcode; rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError {
		return in.failure(dns.RcodeServerFailure)
	}
	m.Answer = append(m.Answer, r.message.Answer...)
	return m
}

// check returns the rcode of a query that is not answered. It finds the OPT record.
func (in *incoming) check() int {
	if in.msg.Opcode != dns.OpcodeQuery {
		return dns.RcodeNotImplemented
	}
	if in.edns = in.msg.IsEdns0(); in.edns != nil && in.edns.Version() != 0 {
		return dns.RcodeBadVers
	}
	if len(in.msg.Question) != 1 {
		return dns.RcodeFormatError
	}
	if in.msg.Question[0].Qclass != dns.ClassINET {
		return dns.RcodeRefused
	}
	return dns.RcodeSuccess
}

// question returns the question for upstream servers.
func (in *incoming) question(name string) question {
	return question{name: strings.ToLower(name), qtype: in.msg.Question[0].Qtype,
		do: in.edns != nil && in.edns.Do(), cd: in.msg.CheckingDisabled}
}

// failure returns an answer without records.
func (in *incoming) failure(rcode int) *dns.Msg {
	m := &dns.Msg{}
	m.Id, m.Response, m.Opcode, m.Rcode = in.msg.Id, true, in.msg.Opcode, rcode
	m.RecursionDesired, m.CheckingDisabled = in.msg.RecursionDesired, in.msg.CheckingDisabled
	m.RecursionAvailable = true
	if len(in.msg.Question) > 0 {
		m.Question = in.msg.Question[:1]
	}
	return m
}

// forwarded returns the answer of an upstream server as an answer to this query. Records of the name
// that was asked get its spelling.
func (in *incoming) forwarded(r reply) *dns.Msg {
	if r.cached {
		in.plugin = "cache"
	}
	m := r.message
	name := in.msg.Question[0].Name
	for _, rr := range m.Answer {
		if h := rr.Header(); h.Name != name && strings.EqualFold(h.Name, name) {
			h.Name = name
		}
	}
	m.Id, m.Response, m.RecursionDesired, m.RecursionAvailable = in.msg.Id, true, in.msg.RecursionDesired, true
	m.CheckingDisabled, m.Authoritative = in.msg.CheckingDisabled, false
	m.AuthenticatedData = m.AuthenticatedData && (in.msg.AuthenticatedData || in.edns != nil && in.edns.Do())
	m.Question = in.msg.Question[:1]
	return m
}

// send sends an answer in the size that the client accepts.
func (s *Server) send(in *incoming, m *dns.Msg, write func([]byte)) {
	limit, do := dns.MaxMsgSize, false
	if in.proto == "udp" {
		limit = dns.MinMsgSize
	}
	if in.edns != nil {
		if do = in.edns.Do(); in.proto == "udp" {
			limit = min(max(int(in.edns.UDPSize()), dns.MinMsgSize), udpSize)
		}
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}}
		opt.SetUDPSize(udpSize)
		opt.SetDo(do)
		m.Extra = append(m.Extra, opt)
	}
	m.Compress = true
	buffer, _ := s.buffers.Get().(*[]byte)
	defer s.buffers.Put(buffer)
	m.Truncate(limit)
	packed, err := m.PackBuffer((*buffer)[:cap(*buffer)])
	if err != nil {
		s.log.Warn("DNS answer not packed", "err", err)
		failed := in.failure(dns.RcodeServerFailure)
		if packed, err = failed.Pack(); err != nil {
			return
		}
		m = failed
	}
	if cap(packed) > cap(*buffer) && cap(packed) <= dns.MaxMsgSize {
		*buffer = packed
	}
	write(packed)
	qtype := dns.TypeNone
	if len(in.msg.Question) > 0 {
		qtype = in.msg.Question[0].Qtype
	}
	s.metrics.served(served{zone: in.zone, proto: in.proto, plugin: in.plugin, ipv6: in.client.Is6(), do: do,
		qtype: qtype, rcode: m.Rcode, request: in.size, response: len(packed), took: time.Since(in.started)})
}
