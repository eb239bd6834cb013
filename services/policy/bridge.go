package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// bridgeFilters are the switches of br_netfilter that pass bridged packets to the forward hook, by
// address family.
var bridgeFilters = map[bool]string{
	false: "/proc/sys/net/bridge/bridge-nf-call-iptables",
	true:  "/proc/sys/net/bridge/bridge-nf-call-ip6tables",
}

// bridges returns the names of the bridges that have an address of one of the ranges, sorted.
func (k kernel) bridges(ranges []netip.Prefix) (out []string, err error) {
	if len(ranges) == 0 {
		return nil, nil
	}
	ns := k.ns
	if !ns.IsOpen() {
		ns = netns.None()
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	addresses, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		address, ok := netip.AddrFromSlice(a.IP)
		inRange := func(p netip.Prefix) bool { return p.Contains(address.Unmap()) }
		if !ok || !slices.ContainsFunc(ranges, inRange) {
			continue
		}
		link, err := h.LinkByIndex(a.LinkIndex)
		if err == nil && link.Type() == "bridge" && !slices.Contains(out, link.Attrs().Name) {
			out = append(out, link.Attrs().Name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// filterBridged makes the kernel pass bridged packets of the families of the ranges to the forward
// hook. load loads the module br_netfilter if it is missing.
func (k kernel) filterBridged(ranges []netip.Prefix, load func() error) (changed bool, err error) {
	return k.filterBridgedAt(bridgeFilters, ranges, load)
}

func (k kernel) filterBridgedAt(
	switches map[bool]string, ranges []netip.Prefix, load func() error,
) (changed bool, err error) {
	for v6, path := range switches {
		if !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) {
			continue
		}
		on, err := k.isOn(path)
		if errors.Is(err, fs.ErrNotExist) && load != nil {
			if err := load(); err != nil {
				return changed, fmt.Errorf("load br_netfilter: %w", err)
			}
			on, err = k.isOn(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return changed, errors.New("kernel module br_netfilter is not loaded")
		}
		if err == nil && !on {
			err = k.inside(func() error { return os.WriteFile(path, []byte("1"), 0) })
			changed = err == nil
		}
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

func (k kernel) isOn(path string) (on bool, err error) {
	err = k.inside(func() error {
		text, err := os.ReadFile(path)
		on = strings.TrimSpace(string(text)) == "1"
		return err
	})
	return on, err
}

// inside runs f in the network namespace.
func (k kernel) inside(f func() error) error {
	if !k.ns.IsOpen() {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := netns.Set(k.ns)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
