package nodeservices

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"berth/services/dns"
	"berth/services/enablement"
)

const (
	dnsPort = 53

	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// runDNS runs the DNS server on the current addresses until ctx ends.
func (s *Services) runDNS(ctx context.Context) {
	var own ownAddresses
	forward := dns.NewForwarder(dns.ForwardOptions{
		ResolvConf: s.opt.ResolvConf, Own: own.has, Log: s.opt.Log, Metrics: s.opt.DNSMetrics,
	})
	defer forward.Close()
	changes := make(chan []netip.Addr)
	var follower sync.WaitGroup
	defer follower.Wait()
	follower.Go(func() {
		enablement.FollowDNSAddresses(ctx, s.opt.ClusterDNS, s.opt.StandaloneDNS, s.opt.Store, func(a []netip.Addr) {
			select {
			case changes <- a:
			case <-ctx.Done():
			}
		})
	})
	for current := []netip.Addr(nil); ctx.Err() == nil; {
		serveCtx, stop := context.WithCancel(ctx)
		var server sync.WaitGroup
		if len(current) > 0 {
			own.set(current)
			addresses := current
			server.Go(func() { s.serveDNS(serveCtx, addresses, forward) })
		}
		select {
		case <-ctx.Done():
		case current = <-changes:
			s.opt.LocalDNS(current)
		}
		stop()
		server.Wait()
	}
}

// ownAddresses are the addresses of the DNS server, to which it does not forward.
type ownAddresses struct {
	mu   sync.Mutex
	list []netip.Addr
}

func (o *ownAddresses) set(list []netip.Addr) {
	o.mu.Lock()
	o.list = list
	o.mu.Unlock()
}

func (o *ownAddresses) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.list, a)
}

// serveDNS answers queries on the given addresses until ctx ends. It tries again after a failure.
func (s *Services) serveDNS(ctx context.Context, addresses []netip.Addr, forward *dns.Forwarder) {
	for retry := minRetry; ; retry = min(2*retry, maxRetry) {
		err := s.serveOnce(ctx, addresses, forward)
		if ctx.Err() != nil {
			return
		}
		s.opt.Log.Error("DNS server failed, starting again", "addresses", addresses, "retryAfter", retry, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

func (s *Services) serveOnce(ctx context.Context, addresses []netip.Addr, forward *dns.Forwarder) error {
	if err := s.opt.Addresses.Set(addresses); err != nil {
		return err
	}
	ports := make([]netip.AddrPort, 0, len(addresses))
	for _, a := range addresses {
		ports = append(ports, netip.AddrPortFrom(a, dnsPort))
	}
	keepCtx, stop := context.WithCancel(ctx)
	var keeper sync.WaitGroup
	defer keeper.Wait()
	defer stop()
	keeper.Go(func() { s.opt.Addresses.Keep(keepCtx, addresses, s.restored) })
	inherited := s.opt.Sockets
	s.opt.Sockets = nil // Open closes them
	sockets, err := dns.Open(ports, inherited)
	if err != nil {
		return err
	}
	s.keep(sockets)
	server := dns.NewServer(dns.Options{
		Domain: s.ClusterDomain(), Store: s.opt.Store, Addresses: addresses, Forward: forward,
		Metrics: s.opt.DNSMetrics, Log: s.opt.Log,
	})
	defer server.Close()
	s.server.Store(server)
	defer s.server.Store(nil)
	s.opt.Log.Info("DNS server started", "addresses", addresses, "domain", s.ClusterDomain())
	return server.Serve(ctx, sockets)
}

// restored reports that another program has removed addresses of the DNS server.
func (s *Services) restored(missing []netip.Addr, err error) {
	switch {
	case err != nil:
		s.opt.Log.Error("addresses of the DNS server not watched; retrying", "missing", missing, "err", err)
	case len(missing) > 0:
		s.opt.Log.Warn("addresses of the DNS server removed by another program; added again", "addresses", missing)
	}
}

// keep hands descriptors of the sockets to the service manager, so that queries wait during a restart.
func (s *Services) keep(sockets *dns.Sockets) {
	if s.opt.Keep == nil {
		return
	}
	files, err := sockets.Files()
	if err == nil {
		err = s.opt.Keep(files)
	}
	for _, f := range files {
		closeFile(f)
	}
	if err != nil {
		s.opt.Log.Warn("DNS server sockets not passed to the service manager", "err", err)
	}
}

func closeFile(f *os.File) { _ = f.Close() } // the service manager has its own descriptor
