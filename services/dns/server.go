package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"berth/services"
)

const (
	// maxForwarded and maxForwardedEach limit the queries that wait for upstream servers, of all clients
	// and of each.
	maxForwarded, maxForwardedEach = 1000, 250
	// maxConnections and maxConnectionsEach limit TCP connections.
	maxConnections, maxConnectionsEach = 512, 64
	// readers is the number of goroutines that read a UDP socket.
	readers = 2
	// idleTimeout ends a TCP connection without queries, writeTimeout one that does not read answers.
	idleTimeout, writeTimeout = 10 * time.Second, 2 * time.Second
	// answerGrace is how long queries that were read may wait for upstream servers when the server ends.
	answerGrace = time.Second
	// maxFailures is the number of failures in a row after which a UDP socket counts as broken.
	maxFailures = 1000
	// maxQuery is the size of the largest query.
	maxQuery = 4096
)

// Options configure a Server.
type Options struct {
	// Domain is the cluster domain, such as cluster.local.
	Domain string
	Store  *services.Store
	// Addresses are the addresses of the server that clients use.
	Addresses []netip.Addr
	// Forward answers all other names. Without it they are refused.
	Forward *Forwarder
	Metrics *Metrics
	Log     *slog.Logger
}

// Server is the DNS server of a node.
type Server struct {
	zone    Zone
	reverse *Reverse
	forward *Forwarder
	metrics *Metrics
	log     *slog.Logger

	serial      atomic.Uint32 // of the SOA record
	rotation    atomic.Uint32
	queries     *limits
	connections *limits
	buffers     sync.Pool // of *[]byte, for answers
}

// NewServer returns a server. It starts nothing; Close ends its subscription to the store.
func NewServer(o Options) *Server {
	domain := dns.CanonicalName(o.Domain)
	return &Server{
		zone:    Zone{Domain: domain, Store: o.Store, Addresses: o.Addresses},
		reverse: NewReverse(o.Store), forward: o.Forward, metrics: o.Metrics, log: o.Log,
		queries: newLimits(maxForwarded, maxForwardedEach), connections: newLimits(maxConnections, maxConnectionsEach),
		buffers: sync.Pool{New: func() any { return new(make([]byte, 0, 2048)) }},
	}
}

// Close ends the subscription to the store.
func (s *Server) Close() { s.reverse.Close() }

// Serve answers queries until ctx is done. It then answers the queries that it has read, those for
// upstream servers within a grace period, closes its descriptors of the sockets and waits for all its
// goroutines. Queries that it has not read stay in the sockets for a successor.
func (s *Server) Serve(ctx context.Context, sockets *Sockets) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answering, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var all sync.WaitGroup
	serve := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil {
				cancel(err)
			}
		})
	}
	s.refresh()
	all.Go(func() { s.followStore(ctx) })
	for _, p := range sockets.udp {
		for range readers {
			serve(func() error { return s.servePackets(ctx, answering, p, &all) })
		}
	}
	for _, l := range sockets.tcp {
		serve(func() error { return s.serveListener(ctx, answering, l, &all) })
	}
	<-ctx.Done()
	sockets.interrupt()
	grace := time.AfterFunc(answerGrace, end)
	all.Wait()
	grace.Stop()
	sockets.Close()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// followStore keeps the index of addresses and the serial of the SOA record up to date.
func (s *Server) followStore(ctx context.Context) {
	for {
		select {
		case <-s.reverse.Changed():
			s.refresh()
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) refresh() {
	s.reverse.Refresh()
	s.serial.Store(uint32(time.Now().Unix())) // serials wrap around
}

// servePackets answers the queries of a UDP socket. Those that wait for upstream servers have their own
// goroutines.
func (s *Server) servePackets(ctx, answering context.Context, p *packetSocket, all *sync.WaitGroup) error {
	buf := make([]byte, maxQuery)
	var d destination
	for failures := 0; ; {
		n, to, client, err := p.read(buf, &d)
		switch {
		case err == nil:
			failures = 0
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of the server
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return err
		default: // usually an ICMP message about an earlier answer
			if failures++; failures == maxFailures {
				return fmt.Errorf("read DNS queries: %w", err)
			}
			s.log.Debug("DNS query not read", "err", err)
			continue
		}
		in := &incoming{client: client.Addr().Unmap(), proto: "udp", size: n}
		s.answer(answering, all, in, buf[:n], func(answer []byte) {
			if err := p.write(answer, to, client); err != nil {
				s.log.Debug("DNS answer not sent", "client", client, "err", err)
			}
		})
	}
}

// serveListener accepts the connections of a TCP socket.
func (s *Server) serveListener(ctx, answering context.Context, l *net.TCPListener, all *sync.WaitGroup) error {
	for {
		conn, err := l.AcceptTCP()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of the server
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return err
		default: // the connection has ended, or there are no descriptors for it
			s.log.Warn("DNS connection not accepted", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		client := addressOf(conn.RemoteAddr()).Addr()
		if !s.connections.acquire(client) {
			_ = conn.Close()
			continue
		}
		all.Go(func() {
			defer s.connections.release(client)
			s.serveConnection(ctx, answering, conn, client)
		})
	}
}

// serveConnection answers the queries of a TCP connection, several at a time.
func (s *Server) serveConnection(ctx, answering context.Context, conn *net.TCPConn, client netip.Addr) {
	defer conn.Close()
	var pending sync.WaitGroup
	defer pending.Wait()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	var writing sync.Mutex
	for {
		if conn.SetReadDeadline(time.Now().Add(idleTimeout)) != nil || ctx.Err() != nil {
			return
		}
		query, err := readTCP(conn)
		if err != nil {
			return
		}
		in := &incoming{client: client, proto: "tcp", size: len(query)}
		s.answer(answering, &pending, in, query, func(answer []byte) {
			writing.Lock()
			defer writing.Unlock()
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			length := [2]byte{byte(len(answer) >> 8), byte(len(answer))}
			buffers := net.Buffers{length[:], answer}
			if _, err := buffers.WriteTo(conn); err != nil {
				_ = conn.Close() // ends the reader too
			}
		})
	}
}
