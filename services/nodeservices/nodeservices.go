package nodeservices

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"berth/services"
	"berth/services/dns"
	"berth/services/enablement"
	"berth/services/localaddress"
)

// Keys of what is remembered in the agent's local store.
const (
	// Prefix is the prefix of all keys.
	Prefix          = "node-services/"
	keyControlPlane = Prefix + "control-plane"
	keyProxy        = Prefix + "proxy"
)

// Options configures Services. All fields but those with a default are required.
type Options struct {
	// ProxySetting and DNSSetting are enablement.Auto, On or Off.
	ProxySetting, DNSSetting string
	Standalone               bool
	// ServerVersion returns the version of the API server. Not needed on a standalone node.
	ServerVersion func(ctx context.Context) (string, error)
	Store         *services.Store
	// RunProxy keeps the rules of the service proxy in sync until ctx ends. RemoveProxy removes them.
	RunProxy    func(ctx context.Context) error
	RemoveProxy func() error
	// LocalDNS passes the addresses of the DNS server to the proxy, which then does not route their queries to
	// endpoints of a Service. It is called if the DNS server runs.
	LocalDNS func([]netip.Addr)
	// RunAnnouncer announces addresses of load balancers until ctx ends. It runs with the proxy.
	RunAnnouncer func(ctx context.Context) error
	// ClusterDNS are the configured addresses of the DNS server. Default: see enablement.DNSAddresses.
	ClusterDNS []netip.Addr
	// StandaloneDNS is the default address of the DNS server on a standalone node.
	StandaloneDNS netip.Addr
	// ClusterDomain is the configured cluster domain. Default: enablement.DefaultDomain, if the DNS
	// server of the node answers.
	ClusterDomain string
	// Addresses are the node's addresses for its own services.
	Addresses localaddress.Addresses
	// ResolvConf is the file with the upstream servers of the DNS server.
	ResolvConf string
	// DNSMetrics may be nil.
	DNSMetrics *dns.Metrics
	// Stored are the values of the local store with Prefix. Put stores a value; nil deletes it.
	Stored map[string][]byte
	Put    func(key string, value []byte)
	// EndpointsNeeded is called once if EndpointSlices are needed.
	EndpointsNeeded func()
	// Sockets are sockets of an earlier process, and Keep stores sockets for the next one. Both may be
	// nil.
	Sockets []*os.File
	Keep    func([]*os.File) error
	Log     *slog.Logger
}

// Services runs the service proxy and the DNS server. It is safe for concurrent use.
type Services struct {
	opt      Options
	decision atomic.Pointer[enablement.Decision] // nil: not known yet
	server   atomic.Pointer[dns.Server]          // the running DNS server; nil: none
}

// New returns Services. It starts nothing.
func New(o Options) *Services { return &Services{opt: o} }

// Decision returns what runs. It returns false while that is not known yet.
func (s *Services) Decision() (enablement.Decision, bool) {
	if d := s.decision.Load(); d != nil {
		return *d, true
	}
	return enablement.Decision{}, false
}

// ClusterDNS returns the addresses of the cluster's DNS for new pods. It returns none if the host's
// resolvers are to be used.
func (s *Services) ClusterDNS() []netip.Addr {
	if len(s.opt.ClusterDNS) > 0 || s.mayAnswer() {
		return enablement.DNSAddresses(s.opt.ClusterDNS, s.opt.StandaloneDNS, s.opt.Store)
	}
	return nil
}

// mayAnswer reports whether the DNS server runs, or may run as far as is known.
func (s *Services) mayAnswer() bool {
	if d, known := s.Decision(); known {
		return d.DNS
	}
	return s.opt.DNSSetting != enablement.Off
}

// ClusterDomain returns the cluster domain for new pods; empty: none.
func (s *Services) ClusterDomain() string {
	if s.opt.ClusterDomain == "" && s.mayAnswer() && len(s.ClusterDNS()) > 0 {
		return enablement.DefaultDomain
	}
	return s.opt.ClusterDomain
}

// DNS returns the running DNS server, or nil.
func (s *Services) DNS() *dns.Server { return s.server.Load() }

// Run runs what the configuration and the control plane ask for until ctx ends. The rules of the proxy
// and the addresses stay.
func (s *Services) Run(ctx context.Context) error {
	d, err := enablement.Wait(ctx, s.enablement())
	if err != nil {
		return nil
	}
	s.decision.Store(&d)
	s.opt.Log.Info("node services decided", "serviceProxy", d.Proxy, "clusterDNSServer", d.DNS)
	if d.Proxy || d.DNS {
		s.opt.EndpointsNeeded()
	}
	var running sync.WaitGroup
	defer running.Wait()
	if d.DNS { // before the first rule
		s.opt.LocalDNS(enablement.DNSAddresses(s.opt.ClusterDNS, s.opt.StandaloneDNS, s.opt.Store))
	}
	if d.Proxy {
		s.opt.Put(keyProxy, []byte(enablement.On)) // before the first rule
		running.Go(func() {
			if err := s.opt.RunProxy(ctx); err != nil {
				s.opt.Log.Error("service proxy failed", "err", err)
			}
		})
		running.Go(func() {
			if err := s.opt.RunAnnouncer(ctx); err != nil {
				s.opt.Log.Error("addresses of load balancers are not announced", "err", err)
			}
		})
	} else {
		s.removeProxy()
	}
	if d.DNS {
		s.runDNS(ctx)
	} else {
		s.removeDNS()
	}
	return nil
}

// activation returns the options of the decision.
func (s *Services) enablement() enablement.Options {
	return enablement.Options{
		Proxy: s.opt.ProxySetting, DNS: s.opt.DNSSetting, Standalone: s.opt.Standalone,
		ServerVersion: s.opt.ServerVersion, Remembered: string(s.opt.Stored[keyControlPlane]),
		Remember: func(controlPlane string) { s.opt.Put(keyControlPlane, []byte(controlPlane)) }, Log: s.opt.Log,
	}
}

// removeDNS removes what the DNS server of an earlier configuration has left: its addresses and sockets.
func (s *Services) removeDNS() {
	for _, f := range s.opt.Sockets {
		closeFile(f)
	}
	if s.opt.Keep != nil {
		if err := s.opt.Keep(nil); err != nil {
			s.opt.Log.Warn("sockets of the DNS server could not be removed", "err", err)
		}
	}
	if err := s.opt.Addresses.Remove(); err != nil {
		s.opt.Log.Error("addresses of the DNS server could not be removed", "err", err)
	}
}

// removeProxy removes the rules of an earlier configuration.
func (s *Services) removeProxy() {
	if s.opt.Stored[keyProxy] == nil {
		return
	}
	if err := s.opt.RemoveProxy(); err != nil {
		s.opt.Log.Error("rules of the service proxy could not be removed", "err", err)
		return
	}
	s.opt.Put(keyProxy, nil)
}
