package localaddress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FileName is the name of the file in berth's state directory.
const FileName = "local-addresses.json"

// file is the content of the file.
type file struct {
	// Addresses are added by berth, or about to be.
	Addresses []netip.Addr `json:"addresses"`
}

// Addresses are the addresses that berth has added to the loopback interface. The methods must not be
// called concurrently.
type Addresses struct {
	// File is the path of the file that lists them.
	File string
}

// Set makes the given addresses local to the node, and removes those that it has added before and that
// are not among them. It is repeatable.
func (a Addresses) Set(want []netip.Addr) error {
	old, err := a.read()
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	present, err := addressesOf(link)
	if err != nil {
		return err
	}
	var own, add, remove []netip.Addr
	for _, x := range want {
		if slices.Contains(old, x) || !present[x] {
			own = append(own, x)
		}
		if !present[x] {
			add = append(add, x)
		}
	}
	for _, x := range old {
		if !slices.Contains(want, x) && present[x] {
			remove = append(remove, x)
		}
	}
	if slices.Equal(own, old) && len(add)+len(remove) == 0 {
		return nil
	}
	if err := a.write(append(slices.Clone(own), remove...)); err != nil {
		return err
	}
	var errs []error
	for _, x := range add {
		if err := netlink.AddrAdd(link, hostAddress(x)); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add %s to the loopback interface: %w", x, err))
		}
	}
	for _, x := range remove {
		if err := netlink.AddrDel(link, hostAddress(x)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("remove %s from the loopback interface: %w", x, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return a.write(own)
}

// repairInterval limits how often Keep adds addresses again, and tries again after an error.
const repairInterval = time.Second

// Keep adds addresses that Set has added again when another program removes them, until ctx ends. It
// calls restored after each attempt. Set must not be called meanwhile.
func (a Addresses) Keep(ctx context.Context, want []netip.Addr, restored func(missing []netip.Addr, err error)) {
	for ctx.Err() == nil {
		if err := a.keep(ctx, want, restored); err != nil {
			restored(nil, err)
		}
		pause(ctx, repairInterval)
	}
}

// keep follows the addresses of the host until ctx ends, or until it fails.
func (a Addresses) keep(ctx context.Context, want []netip.Addr, restored func([]netip.Addr, error)) error {
	updates, done := make(chan netlink.AddrUpdate), make(chan struct{})
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return fmt.Errorf("follow addresses of the host: %w", err)
	}
	defer func() {
		close(done)
		for range updates { // until the receiver has ended
		}
	}()
	for {
		missing, err := missingOf(want)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			err := a.Set(want)
			restored(missing, err)
			pause(ctx, repairInterval) // another program may remove them at once
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				continue
			}
		}
		for removed := false; !removed; {
			select {
			case <-ctx.Done():
				return nil
			case u, open := <-updates:
				if !open {
					return errors.New("follow addresses of the host: events were lost")
				}
				ip, _ := netip.AddrFromSlice(u.LinkAddress.IP)
				removed = !u.NewAddr && slices.Contains(want, ip.Unmap())
			}
		}
	}
}

// missingOf returns which addresses the loopback interface does not have.
func missingOf(want []netip.Addr) (missing []netip.Addr, err error) {
	link, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("loopback interface: %w", err)
	}
	present, err := addressesOf(link)
	for _, x := range want {
		if err == nil && !present[x] {
			missing = append(missing, x)
		}
	}
	return missing, err
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Remove removes all addresses that Set has added, and the file.
func (a Addresses) Remove() error { return a.Set(nil) }

// read returns the addresses of the file.
func (a Addresses) read() ([]netip.Addr, error) {
	text, err := os.ReadFile(a.File)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return nil, nil
	}
	var f file
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.File, err)
	}
	return f.Addresses, nil
}

// write replaces the file, or deletes it if there are no addresses.
func (a Addresses) write(all []netip.Addr) error {
	if len(all) == 0 {
		if err := os.Remove(a.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(file{all})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(a.File), 0o700); err != nil {
		return err
	}
	next := a.File + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(next, a.File)
}

// addressesOf returns the addresses of a link.
func addressesOf(link netlink.Link) (map[netip.Addr]bool, error) {
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("addresses of the loopback interface: %w", err)
	}
	out := map[netip.Addr]bool{}
	for _, x := range list {
		if ip, ok := netip.AddrFromSlice(x.IP); ok {
			out[ip.Unmap()] = true
		}
	}
	return out, nil
}

// hostAddress returns an address as the only one of its network, without duplicate address detection. Its
// scope host tells other programs that it is no address of the machine for others.
func hostAddress(x netip.Addr) *netlink.Addr {
	out := &netlink.Addr{
		IPNet: &net.IPNet{IP: x.AsSlice(), Mask: net.CIDRMask(x.BitLen(), x.BitLen())}, Scope: unix.RT_SCOPE_HOST,
	}
	if x.Is6() {
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}
