package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"berth/node"
)

// addressCheckInterval is the interval of the checks for changed addresses. A change must be seen
// twice, because an address can be missing for a moment during a DHCP renewal.
const addressCheckInterval = 10 * time.Second

// errAddressesChanged restarts the agent. The addresses are in the status of every pod, in hosts
// files, in certificates and in the Node, which cannot be updated one by one.
var errAddressesChanged = fmt.Errorf("node addresses changed: %w", errReload)

// watchAddresses returns errAddressesChanged or, when ctx ends, nil. Configured addresses never
// change.
func (b *berth) watchAddresses(ctx context.Context) error {
	if len(b.config.NodeIPs) > 0 {
		return nil
	}
	tick := time.NewTicker(addressCheckInterval)
	defer tick.Stop()
	var last []netip.Addr
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := node.ChangedAddresses(b.host.addrs)
		if now != nil && slices.Equal(now, last) {
			b.log.Info("node addresses changed, restarting", "had", b.host.addrs, "has", now)
			return errAddressesChanged
		}
		last = now
	}
}
