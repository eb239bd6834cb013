package announce

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// linkDelay is how long changes of interfaces are collected: pods come with several.
const linkDelay = 200 * time.Millisecond

// listLinks returns the interfaces with networks, ordered by index, and all addresses of the node.
func listLinks(ns netns.NsHandle) (links []link, own map[netip.Addr]bool, err error) {
	h, err := handleAt(ns)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	all, err := h.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("list interfaces: %w", err)
	}
	addresses, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, nil, fmt.Errorf("list addresses: %w", err)
	}
	own = map[netip.Addr]bool{}
	networks := map[int][]netip.Prefix{}
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		if !ok {
			continue
		}
		ip = ip.Unmap()
		own[ip] = true
		if ip.Is6() && ones == 0 || ip.IsLinkLocalUnicast() {
			continue
		}
		networks[a.LinkIndex] = append(networks[a.LinkIndex], netip.PrefixFrom(ip, ones))
	}
	for _, l := range all {
		a := l.Attrs()
		if a.Flags&net.FlagUp != 0 && a.Flags&net.FlagBroadcast != 0 && a.RawFlags&unix.IFF_NOARP == 0 &&
			len(a.HardwareAddr) == 6 && len(networks[a.Index]) > 0 {
			links = append(links, link{a.Index, a.Name, a.HardwareAddr, networks[a.Index]})
		}
	}
	slices.SortFunc(links, func(x, y link) int { return x.index - y.index })
	return links, own, nil
}

func handleAt(ns netns.NsHandle) (*netlink.Handle, error) {
	if ns.IsOpen() {
		h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
		if err != nil {
			return nil, fmt.Errorf("open netlink: %w", err)
		}
		return h, nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// linkFor returns the interface with the smallest network that contains the address. The address may be
// neither that of the network nor its broadcast address.
func linkFor(links []link, a netip.Addr) (found *link) {
	bits := -1
	for i := range links {
		for _, p := range links[i].networks {
			ofNetwork := a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || isLast(p, a))
			if p.Contains(a) && p.Bits() > bits && !ofNetwork {
				found, bits = &links[i], p.Bits() //nolint:gosec // i is an index of links
			}
		}
	}
	return found
}

func isLast(p netip.Prefix, a netip.Addr) bool { return !p.Contains(a.Next()) }

// followLinks signals changes of interfaces and addresses until ctx ends.
func followLinks(ctx context.Context, ns netns.NsHandle, changed chan<- struct{}) error {
	links, addresses := make(chan netlink.LinkUpdate, 64), make(chan netlink.AddrUpdate, 64)
	done := make(chan struct{})
	linkOptions, addressOptions := netlink.LinkSubscribeOptions{}, netlink.AddrSubscribeOptions{}
	if ns.IsOpen() {
		linkOptions.Namespace, addressOptions.Namespace = &ns, &ns
	}
	if err := netlink.LinkSubscribeWithOptions(links, done, linkOptions); err != nil {
		close(done)
		return fmt.Errorf("follow interfaces: %w", err)
	}
	if err := netlink.AddrSubscribeWithOptions(addresses, done, addressOptions); err != nil {
		close(done)
		drain(links)
		return fmt.Errorf("follow addresses: %w", err)
	}
	defer func() {
		close(done)
		drain(links)
		drain(addresses)
	}()
	for {
		var ok bool
		select {
		case <-ctx.Done():
			return nil
		case _, ok = <-links:
		case _, ok = <-addresses:
		}
		if !ok {
			return fmt.Errorf("follow interfaces: the kernel has closed the subscription")
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// drain waits for the goroutine of a subscription, which closes its channel.
func drain[T any](c <-chan T) {
	for range c {
	}
}
