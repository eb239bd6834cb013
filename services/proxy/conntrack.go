package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/services/proxy/ruleset"
)

// The kernel applies NAT to the first packet of a flow only, and a UDP flow lasts as long as the
// client keeps sending. When a frontend appears, disappears or loses an endpoint, flows that lead
// elsewhere are deleted from conntrack, so that the rules apply to the next packet.

// cleaner deletes stale UDP flows. Its fields belong to the goroutine of Run; passes over the
// conntrack table run on their own goroutine, one at a time.
type cleaner struct {
	*Proxy
	pending map[ruleset.Key]bool
	running bool
	retryAt time.Time
	done    chan cleanResult // capacity 1
}

type cleanResult struct {
	keys    map[ruleset.Key][]netip.AddrPort
	deleted [2]int // IPv4 and IPv6
	took    time.Duration
	err     error
}

// cleanRetry is the time after a failed pass.
const cleanRetry = time.Second

func newCleaner(p *Proxy) *cleaner {
	return &cleaner{Proxy: p, pending: map[ruleset.Key]bool{}, done: make(chan cleanResult, 1)}
}

// add notes frontends whose flows may be stale. They are checked after the next sync.
func (c *cleaner) add(keys []ruleset.Key) {
	for _, k := range keys {
		if k.Protocol == ruleset.UDP {
			c.pending[k] = true
		}
	}
}

// start starts a pass if it is due. The state must be that of the kernel.
func (c *cleaner) start() {
	if c.running || len(c.pending) == 0 || time.Now().Before(c.retryAt) {
		return
	}
	keys := make(map[ruleset.Key][]netip.AddrPort, len(c.pending))
	for k := range c.pending {
		_, serving, _ := c.state.Owner(k)
		keys[k] = serving
	}
	clear(c.pending)
	c.running = true
	go func() {
		start := time.Now()
		n, err := deleteStaleFlows(c.opt.NetNS, keys)
		c.done <- cleanResult{keys, n, time.Since(start), err}
	}()
}

// finished handles the result of a pass.
func (c *cleaner) finished(r cleanResult) {
	c.running = false
	c.opt.Metrics.cleaned(r.took, r.deleted)
	switch {
	case r.err != nil:
		c.opt.Log.Warn("stale conntrack entries could not be deleted; retrying", "err", r.err)
		c.retryAt = time.Now().Add(cleanRetry)
		for k := range r.keys {
			c.pending[k] = true
		}
		time.AfterFunc(cleanRetry, c.trigger)
	case r.deleted != [2]int{}:
		c.opt.Log.Info("stale conntrack entries deleted", "flows", r.deleted[0]+r.deleted[1])
	}
	if len(c.pending) > 0 {
		c.trigger()
	}
}

// stop waits for a pass.
func (c *cleaner) stop() {
	if c.running {
		<-c.done
	}
}

// deleteStaleFlows deletes the UDP flows to the frontends that lead to none of their endpoints.
func deleteStaleFlows(ns netns.NsHandle, keys map[ruleset.Key][]netip.AddrPort) (deleted [2]int, err error) {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_NETFILTER)
	if err != nil {
		return deleted, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	filter := newStaleFilter(keys)
	for i, f := range [...]netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if !filter.families[i] {
			continue
		}
		n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, f, filter)
		deleted[i] = int(n)
		// An interrupted dump may lack flows: they are new, and the kernel has applied the rules.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return deleted, fmt.Errorf("delete conntrack entries: %w", err)
		}
	}
	return deleted, nil
}

// staleFilter selects stale flows.
type staleFilter struct {
	allowed  map[ruleset.Key]map[netip.AddrPort]bool
	families [2]bool
}

func newStaleFilter(keys map[ruleset.Key][]netip.AddrPort) *staleFilter {
	f := &staleFilter{allowed: make(map[ruleset.Key]map[netip.AddrPort]bool, len(keys))}
	for k, serving := range keys {
		set := make(map[netip.AddrPort]bool, len(serving))
		for _, a := range serving {
			set[a] = true
		}
		f.allowed[k] = set
		if k.Addr().Is6() {
			f.families[1] = true
		} else {
			f.families[0] = true
		}
	}
	return f
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f *staleFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	allowed, known := f.allowed[ruleset.NewKey(dst, ruleset.UDP, flow.Forward.DstPort)]
	if !known {
		return false
	}
	src, ok := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return ok && !allowed[netip.AddrPortFrom(src.Unmap(), flow.Reverse.SrcPort)]
}
