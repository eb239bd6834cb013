package proxy

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netns"

	"berth/services"
	"berth/services/proxy/ruleset"
)

// Node is what the proxy needs to know about the node.
type Node = ruleset.Node

// Options configures a Proxy.
type Options struct {
	Store *services.Store
	Node  Node
	Log   *slog.Logger
	// Metrics may be nil.
	Metrics *Metrics
	// NetNS is the network namespace to configure. Zero: that of the process.
	NetNS netns.NsHandle
	// OnHealthCheckFailure is called with each Service whose health check node port cannot be
	// opened. It must not block. May be nil.
	OnHealthCheckFailure func(services.Name, error)
}

// Status is the state of the proxy.
type Status struct {
	// Synced is true if the kernel has the rules of all known Services.
	Synced bool
	// LastSync is the time of the last successful sync.
	LastSync time.Time
	// Err is why the last sync failed; empty if it succeeded.
	Err string
}

// Proxy routes traffic for Services on this node.
type Proxy struct {
	opt  Options
	wake chan struct{} // capacity 1
	// Time between complete comparisons, and between checks whether others have changed any table.
	auditInterval, checkInterval time.Duration
	// onSync is called after each attempt. It is nil outside tests.
	onSync func(error)

	mu     sync.Mutex
	node   *Node
	status Status
	// state is written by the goroutine of Run only, with the lock. That goroutine reads it without.
	state *ruleset.State
}

// Waits of the loop.
const (
	auditInterval = 10 * time.Minute
	checkInterval = 5 * time.Second
	minBackoff    = 250 * time.Millisecond
	maxBackoff    = 30 * time.Second
)

// New returns a proxy. It does not change the host.
func New(o Options) *Proxy {
	if o.NetNS == 0 {
		o.NetNS = netns.None()
	}
	node := o.Node
	return &Proxy{
		opt: o, wake: make(chan struct{}, 1), auditInterval: auditInterval, checkInterval: checkInterval,
		node: &node, state: ruleset.NewState(&node),
	}
}

// SetNode changes what is known about the node, except for its LocalDNS.
func (p *Proxy) SetNode(node Node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	node.LocalDNS = p.node.LocalDNS
	p.setNode(node)
}

// SetLocalDNS changes LocalDNS of the node. The addresses must not be modified later.
func (p *Proxy) SetLocalDNS(addresses []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	node := *p.node
	node.LocalDNS = addresses
	p.setNode(node)
}

// setNode changes the node. The caller holds the lock.
func (p *Proxy) setNode(node Node) {
	if !p.node.Equal(&node) {
		p.node = &node
		p.trigger()
	}
}

func (p *Proxy) trigger() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Status returns the current status.
func (p *Proxy) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Explain returns how this node routes traffic for a Service.
func (p *Proxy) Explain(svc *services.Service, slices []*services.Slice) ruleset.Explanation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return ruleset.Explain(svc, slices, p.node, p.state)
}

// Run keeps the rules in sync until ctx ends. The rules stay.
func (p *Proxy) Run(ctx context.Context) error {
	sub := p.opt.Store.Subscribe()
	defer sub.Close()
	s := newSyncer(p)
	defer s.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Changed():
		case <-p.wake:
		case <-timer.C:
		case result := <-s.cleaner.done:
			s.cleaner.finished(result)
			continue
		}
		s.add(sub.Take())
		if !p.opt.Store.Synced() {
			continue // the signal comes again
		}
		timer.Reset(s.sync(ctx))
	}
}

// Remove deletes the rules of all runs. Established connections go on as long as another table of the
// host translates addresses: the kernel translates nothing without one.
func Remove(ns netns.NsHandle) error {
	if ns == 0 {
		ns = netns.None()
	}
	k, err := openKernel(ns)
	if err != nil {
		return err
	}
	defer k.close()
	return k.remove()
}
