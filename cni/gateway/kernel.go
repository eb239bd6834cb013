package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth/cni/routes"
)

// kernel accesses the network configuration of a namespace.
type kernel struct{ ns netns.NsHandle }

// handle opens a netlink socket in the namespace. The caller closes it.
func (k kernel) handle() (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(k.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// observe reads the input of the decision. damaged reports that the rules differ from what was
// written.
func (k kernel) observe() (in routes.Input, damaged bool, err error) {
	h, err := k.handle()
	if err != nil {
		return in, false, err
	}
	defer h.Close()
	if in.Links, err = links(h); err != nil {
		return in, false, fmt.Errorf("list host addresses: %w", err)
	}
	if in.Routes, err = listRoutes(h); err != nil {
		return in, false, fmt.Errorf("list host routes: %w", err)
	}
	in.Masquerade, damaged, err = k.masquerades()
	return in, damaged, err
}

// links returns the interfaces that are up and have addresses.
func links(h *netlink.Handle) (out []routes.Link, err error) {
	all, err := retryInterrupted(h.LinkList)
	if err != nil {
		return nil, err
	}
	addresses, err := retryInterrupted(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	nets := map[int][]netip.Prefix{}
	for _, a := range addresses {
		if p, ok := prefix(a.IPNet); ok && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			nets[a.LinkIndex] = append(nets[a.LinkIndex], p)
		}
	}
	for _, l := range all {
		at := l.Attrs()
		if len(nets[at.Index]) > 0 && at.Flags&net.FlagUp != 0 {
			out = append(out, routes.Link{Index: at.Index, Name: at.Name, Prefixes: nets[at.Index]})
		}
	}
	return out, nil
}

// retryInterrupted repeats a dump that was interrupted by a change.
func retryInterrupted[T any](f func() ([]T, error)) (out []T, err error) {
	for range 5 {
		if out, err = f(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// listRoutes returns the unicast routes of the main table, without link-local ones.
func listRoutes(h *netlink.Handle) (out []routes.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := retryInterrupted(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			p, ok := prefix(r.Dst)
			if !ok || p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast() {
				continue
			}
			if r.Gw == nil && len(r.MultiPath) > 0 {
				r.Gw, r.LinkIndex = r.MultiPath[0].Gw, r.MultiPath[0].LinkIndex
			}
			via, _ := netip.AddrFromSlice(r.Gw)
			out = append(out, routes.Route{Dst: p, NextHop: via.Unmap(), LinkIndex: r.LinkIndex,
				Protocol: int(r.Protocol)})
		}
	}
	return out, nil
}

// prefix converts a network with the host bits of its address.
func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, of := n.Mask.Size()
	if of == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits), ok && of == a.BitLen()
}

func (k kernel) add(r routes.Route) error {
	h, err := k.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.RouteAdd(netlinkRoute(r)); err != nil {
		return fmt.Errorf("add route %s via %s: %w", r.Dst, r.NextHop, err)
	}
	return nil
}

// remove deletes a route. The kernel compares the protocol, so a route of another component to the
// same destination stays.
func (k kernel) remove(r routes.Route) error {
	h, err := k.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.RouteDel(netlinkRoute(r)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route %s via %s: %w", r.Dst, r.NextHop, err)
	}
	return nil
}

// isRouteError reports whether an error of add or remove concerns only that route. Other errors
// affect all routes.
func isRouteError(err error) bool {
	for _, of := range [...]error{
		unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV, unix.EADDRNOTAVAIL,
		unix.EEXIST, unix.ENOENT,
	} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

func netlinkRoute(r routes.Route) *netlink.Route {
	m := &netlink.Route{
		LinkIndex: r.LinkIndex, Protocol: netlink.RouteProtocol(r.Protocol), Table: unix.RT_TABLE_MAIN,
		Dst: &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())},
	}
	if r.NextHop.IsValid() {
		m.Gw = r.NextHop.AsSlice()
	}
	return m
}

// subscribe notifies of route changes, which include those of addresses and links, until stop is
// called. changes is closed when the subscription is lost.
func (k kernel) subscribe() (changes <-chan struct{}, stop func()) {
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	out := make(chan struct{}, 1)
	if err := netlink.RouteSubscribeWithOptions(
		updates,
		done,
		netlink.RouteSubscribeOptions{Namespace: &k.ns, ErrorCallback: func(error) {}},
	); err != nil {
		close(out)
		return out, func() {}
	}
	go func() { // ends with the subscription
		defer close(out)
		for u := range updates {
			p, ok := prefix(u.Dst)
			if u.Table != unix.RT_TABLE_MAIN || ok && (p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast()) {
				continue // created for every pod
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, func() {
		close(done)
		for range out { // wait for the goroutine
		}
	}
}
