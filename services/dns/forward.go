package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	// DefaultCacheBytes is the usual size of the cache.
	DefaultCacheBytes = 4 << 20
	// attemptEvery is how long an upstream server has before the next one is queried too.
	attemptEvery = time.Second
	// forwardTimeout is how long all attempts may take: resolvers of clients wait this long.
	forwardTimeout = 5 * time.Second
	// staleAfter is when an expired answer is sent although an upstream server may still answer, as
	// RFC 8767 recommends.
	staleAfter = 1800 * time.Millisecond
	// staleRetry is how long an expired answer is sent without another query, after a failure.
	staleRetry = 5 * time.Second
	// minAttempts is the number of attempts if there are fewer servers.
	minAttempts = 3
)

// ForwardOptions configure a Forwarder.
type ForwardOptions struct {
	// ResolvConf is the file with the upstream servers. Changes of it are noticed.
	ResolvConf string
	// Own reports whether an address is one of this DNS server, to which nothing is forwarded.
	Own func(netip.Addr) bool
	// Port is that of the upstream servers. 0 means 53.
	Port uint16
	// CacheBytes limits the cache. 0 means DefaultCacheBytes.
	CacheBytes int
	Log        *slog.Logger
	Metrics    *Metrics

	dial dialer // of tests
	now  func() time.Time
}

// Forwarder answers questions by querying upstream servers, and caches the answers. It is safe for
// concurrent use. Equal questions at the same time share one answer.
type Forwarder struct {
	upstreams upstreams
	cache     *cache
	dial      dialer
	now       func() time.Time
	log       *slog.Logger
	metrics   *Metrics
	ctx       context.Context //nolint:containedctx // ends the questions in progress
	stop      context.CancelFunc
	running   sync.WaitGroup
	// loopLogged is when a loop was last logged; nil: never.
	loopLogged atomic.Pointer[time.Time]

	mu       sync.Mutex
	inflight map[question]*inflightQuery
}

// inflightQuery is a question that upstream servers are being queried for. Equal questions share it.
type inflightQuery struct {
	done  chan struct{} // closed when reply and err are set
	reply reply
	err   error
}

// reply is an answer with its origin.
type reply struct {
	message  *dns.Msg
	upstream string
	// cached is true for an answer from the cache, stale for one that has expired.
	cached, stale bool
}

// NewForwarder returns a Forwarder. Close ends its goroutines.
func NewForwarder(o ForwardOptions) *Forwarder {
	f := &Forwarder{dial: o.dial, now: o.now, log: o.Log, metrics: o.Metrics, inflight: map[question]*inflightQuery{}}
	if f.dial == nil {
		f.dial = dial
	}
	if f.now == nil {
		f.now = time.Now
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = DefaultCacheBytes
	}
	f.cache = newCache(o.CacheBytes, f.metrics.cacheEvicted)
	if o.Port == 0 {
		o.Port = 53
	}
	f.upstreams = upstreams{path: o.ResolvConf, port: o.Port, own: o.Own, changed: f.upstreamsChanged}
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.metrics.observeCache(f.cache.count)
	return f
}

// Close ends all questions in progress and waits for their goroutines.
func (f *Forwarder) Close() {
	f.mu.Lock()
	f.stop() // join starts nothing after this
	f.mu.Unlock()
	f.running.Wait()
}

func (f *Forwarder) upstreamsChanged(use, refused []netip.Addr, err error) {
	switch {
	case err != nil:
		f.log.Warn("resolver configuration not readable", "path", f.upstreams.path, "err", err)
	case len(use) == 0:
		f.log.Warn("no upstream DNS servers", "path", f.upstreams.path, "refused", joinAddresses(refused))
	default:
		f.log.Info("upstream DNS servers changed", "path", f.upstreams.path, "servers", joinAddresses(use),
			"refused", joinAddresses(refused))
	}
}

// errNoUpstreams is the error while there are no servers to forward to.
var errNoUpstreams = errors.New("no upstream DNS servers")

// errTimeout is the error if no server has answered.
var errTimeout = fmt.Errorf("no answer from upstream DNS servers within %v", forwardTimeout)

// cached answers a question from the cache if it has a fresh answer, or an expired one while upstream
// servers fail. It returns false if they must be queried.
func (f *Forwarder) cached(q question) (r reply, ok bool) {
	now := f.now()
	e := f.cache.get(q)
	if e == nil || !e.fresh(now) && (!e.stale(now) || !now.Before(e.retry)) {
		return r, false
	}
	m, err := e.answer(now)
	return reply{message: m, upstream: e.upstream, cached: true, stale: !e.fresh(now)}, err == nil
}

// resolve answers a question by querying upstream servers. If they fail, it answers with an expired
// answer if there is one.
func (f *Forwarder) resolve(ctx context.Context, q question) (reply, error) {
	fl := f.join(q)
	expired := f.cache.get(q)
	var early <-chan time.Time
	if expired != nil && expired.stale(f.now()) {
		timer := time.NewTimer(staleAfter)
		defer timer.Stop()
		early = timer.C
	}
	select {
	case <-fl.done:
		if fl.err == nil {
			return fl.copy(), nil
		}
	case <-early:
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
	if expired != nil && expired.stale(f.now()) {
		if m, err := expired.answer(f.now()); err == nil {
			return reply{message: m, upstream: expired.upstream, cached: true, stale: true}, nil
		}
	}
	<-fl.done // only without an expired answer
	return fl.copy(), fl.err
}

// copy returns the reply with a copy of the message, which the caller may change.
func (fl *inflightQuery) copy() reply {
	r := fl.reply
	if r.message != nil {
		r.message = r.message.Copy()
	}
	return r
}

// loops reports whether a client is an upstream server that sends a question back for which it is being
// queried. It logs this at most once a minute.
func (f *Forwarder) loops(q question, client netip.Addr) bool {
	f.mu.Lock()
	pending := f.inflight[q] != nil
	f.mu.Unlock()
	if !pending || !f.upstreams.has(client) {
		return false
	}
	now := f.now()
	if last := f.loopLogged.Load(); last == nil || now.Sub(*last) > time.Minute {
		f.loopLogged.Store(&now)
		f.log.Warn("DNS loop: upstream server forwards queries to this server", "server", client, "name", q.name,
			"path", f.upstreams.path)
	}
	return true
}

// join returns the query in flight for a question, and starts it if there is none.
func (f *Forwarder) join(q question) *inflightQuery {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.inflight[q]; fl != nil {
		return fl
	}
	fl := &inflightQuery{done: make(chan struct{})}
	if fl.err = f.ctx.Err(); fl.err != nil {
		close(fl.done)
		return fl
	}
	f.inflight[q] = fl
	f.running.Go(func() {
		fl.reply, fl.err = f.queryUpstreams(q)
		f.mu.Lock()
		delete(f.inflight, q)
		f.mu.Unlock()
		close(fl.done)
	})
	return fl
}

// queryUpstreams queries upstream servers and caches the answer.
func (f *Forwarder) queryUpstreams(q question) (reply, error) {
	ctx, cancel := context.WithTimeoutCause(f.ctx, forwardTimeout, errTimeout)
	defer cancel()
	m, from, err := f.tryUpstreams(ctx, q)
	now := f.now()
	if err == nil {
		if removeEDNS(m); !useful(m) {
			err = fmt.Errorf("upstream server %s: %s", from, rcodeName(m.Rcode))
		} else if e := newEntry(q, m, from, now); e != nil {
			f.cache.put(e)
			m, err = e.answer(now) // with limited TTLs
		}
	}
	if err == nil {
		return reply{message: m, upstream: from}, nil
	}
	f.log.Debug("DNS query not answered by upstream servers", "name", q.name, "type", dns.TypeToString[q.qtype],
		"err", err)
	switch old := f.cache.get(q); {
	case old != nil && old.stale(now):
		again := *old
		again.retry = now.Add(staleRetry)
		f.cache.put(&again)
	case m != nil && m.Rcode != dns.RcodeServerFailure: // the client gets the refusal
		return reply{message: m, upstream: from}, nil
	case f.ctx.Err() == nil:
		failed := &dns.Msg{Question: []dns.Question{{Name: q.name, Qtype: q.qtype, Qclass: dns.ClassINET}}}
		failed.Response, failed.Rcode = true, dns.RcodeServerFailure
		if e := newEntry(q, failed, from, now); e != nil {
			f.cache.put(e)
		}
	}
	return reply{upstream: from}, err
}

// outcome is the answer of one attempt.
type outcome struct {
	message *dns.Msg
	from    netip.AddrPort
	err     error
}

// tryUpstreams queries one server after another until one answers: the next one when one fails, or when
// it has not answered for attemptEvery.
func (f *Forwarder) tryUpstreams(ctx context.Context, q question) (m *dns.Msg, from string, err error) {
	servers, broken := f.upstreams.order(f.now())
	if len(servers) == 0 {
		return nil, "", errNoUpstreams
	}
	if broken {
		f.metrics.forwardBroken()
	}
	var attempts sync.WaitGroup
	defer attempts.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before Wait
	outcomes := make(chan outcome)
	next, count, open := 0, max(minAttempts, len(servers)), 0
	start := func() {
		to := servers[next%len(servers)]
		next++
		open++
		attempts.Go(func() {
			o := f.attempt(ctx, to, q)
			select {
			case outcomes <- o:
			case <-ctx.Done():
			}
		})
	}
	timer := time.NewTimer(attemptEvery)
	defer timer.Stop()
	for start(); ; {
		select {
		case o := <-outcomes:
			open--
			if o.err == nil && useful(o.message) {
				return o.message, o.from.String(), nil
			}
			if o.err != nil {
				err = fmt.Errorf("upstream server %s: %w", o.from, o.err)
			} else {
				m, from = o.message, o.from.String()
			}
		case <-timer.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return m, from, errorIfNoMessage(m, context.Cause(ctx))
		}
		if next < count {
			start()
			timer.Reset(attemptEvery)
		} else if open == 0 {
			return m, from, errorIfNoMessage(m, err)
		}
	}
}

// errorIfNoMessage returns the error if there is no message.
func errorIfNoMessage(m *dns.Msg, err error) error {
	if m != nil {
		return nil
	}
	return err
}

// useful reports whether another server would hardly have a better answer.
func useful(m *dns.Msg) bool { return m.Rcode == dns.RcodeSuccess || m.Rcode == dns.RcodeNameError }

// attempt queries one server and records its health and the duration.
func (f *Forwarder) attempt(ctx context.Context, to netip.AddrPort, q question) outcome {
	started := f.now()
	m, err := exchange(ctx, f.dial, to, q)
	now := f.now()
	if took := now.Sub(started); err == nil || ctx.Err() == nil || took >= attemptEvery {
		f.upstreams.report(to, err == nil, now)
		f.metrics.forwarded(to, m, err, took)
	} // else it had no time to answer, because another server was faster
	return outcome{m, to, err}
}

// removeEDNS removes the OPT record of the upstream server, which is for this server only.
func removeEDNS(m *dns.Msg) {
	for i, rr := range m.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			m.Extra = append(m.Extra[:i:i], m.Extra[i+1:]...)
			return
		}
	}
}
