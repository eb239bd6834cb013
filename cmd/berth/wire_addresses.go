package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"berth/node"
)

// addressesEvery is how often it is looked whether the host still has the node's
// addresses. What changed counts when it is the same the second time: a lease that
// is renewed may be away for a moment.
const addressesEvery = 10 * time.Second

// errMoved has the agent begin anew. The node's addresses are in the status of every
// pod, in hosts files, in certificates and in the Node: none of these is for parts to
// follow one by one.
var errMoved = fmt.Errorf("the node has other addresses: %w", errReload)

// watchAddresses ends before ctx only with errMoved. Addresses that the
// configuration names stay what they are.
func (b *berth) watchAddresses(ctx context.Context) error {
	if len(b.config.NodeIPs) > 0 {
		return nil
	}
	tick := time.NewTicker(addressesEvery)
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
			b.log.Info("the node has other addresses: berth begins anew", "had", b.host.addrs, "has", now)
			return errMoved
		}
		last = now
	}
}
