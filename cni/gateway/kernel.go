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

// kernel is the network of a namespace.
type kernel struct{ ns netns.NsHandle }

// handle speaks to the namespace; the caller closes it.
func (k kernel) handle() (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(k.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// look reads what the decision depends on. broken: the rules are not what they
// were written as.
func (k kernel) look() (in routes.Input, broken bool, err error) {
	h, err := k.handle()
	if err != nil {
		return in, false, err
	}
	defer h.Close()
	if in.Links, err = links(h); err != nil {
		return in, false, fmt.Errorf("list the host's addresses: %w", err)
	}
	if in.Routes, err = list(h); err != nil {
		return in, false, fmt.Errorf("list the host's routes: %w", err)
	}
	in.Masquerade, broken, err = k.masquerades()
	return in, broken, err
}

// links are the interfaces that are up and have addresses.
func links(h *netlink.Handle) (out []routes.Link, err error) {
	all, err := whole(h.LinkList)
	if err != nil {
		return nil, err
	}
	addresses, err := whole(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
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

// whole lists again what changed while it was being listed.
func whole[T any](f func() ([]T, error)) (out []T, err error) {
	for range 5 {
		if out, err = f(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// list is the main table, without what is no route to anywhere else.
func list(h *netlink.Handle) (out []routes.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := whole(func() ([]netlink.Route, error) {
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
			out = append(out, routes.Route{Dst: p, NextHop: via.Unmap(), LinkIndex: r.LinkIndex, Protocol: int(r.Protocol)})
		}
	}
	return out, nil
}

// prefix is a network as netlink has it, with the address as it is.
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
	if err := h.RouteAdd(message(r)); err != nil {
		return fmt.Errorf("add route %s via %s: %w", r.Dst, r.NextHop, err)
	}
	return nil
}

// remove takes away a route. The kernel compares the protocol: another's to the
// same range stays.
func (k kernel) remove(r routes.Route) error {
	h, err := k.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	if err := h.RouteDel(message(r)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove route %s via %s: %w", r.Dst, r.NextHop, err)
	}
	return nil
}

// refused reports whether an error of add or remove is about that one route: the
// kernel was reached and does not take what it says. Others hold for any route.
func refused(err error) bool {
	for _, of := range [...]error{
		unix.EINVAL, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.ENODEV, unix.EADDRNOTAVAIL, unix.EEXIST, unix.ENOENT,
	} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

func message(r routes.Route) *netlink.Route {
	m := &netlink.Route{
		LinkIndex: r.LinkIndex, Protocol: netlink.RouteProtocol(r.Protocol), Table: unix.RT_TABLE_MAIN,
		Dst: &net.IPNet{IP: r.Dst.Addr().AsSlice(), Mask: net.CIDRMask(r.Dst.Bits(), r.Dst.Addr().BitLen())},
	}
	if r.NextHop.IsValid() {
		m.Gw = r.NextHop.AsSlice()
	}
	return m
}

// listen tells of changes of routes, those of addresses and links among them,
// until stop. heard is closed when the kernel is not heard any more.
func (k kernel) listen() (heard <-chan struct{}, stop func()) {
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	out := make(chan struct{}, 1)
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{Namespace: &k.ns, ErrorCallback: func(error) {}}); err != nil {
		close(out)
		return out, func() {}
	}
	go func() { // ends when the subscription does
		defer close(out)
		for u := range updates {
			p, ok := prefix(u.Dst)
			if u.Table != unix.RT_TABLE_MAIN || ok && (p.Addr().IsLinkLocalUnicast() || p.Addr().IsMulticast()) {
				continue // each new pod brings such
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, func() {
		close(done)
		for range out { // until it has ended
		}
	}
}
