package node

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// addressCheckInterval is the interval of the checks for changed addresses. A change must be seen
// twice, because an address can be missing for a moment during a DHCP renewal.
const addressCheckInterval = 10 * time.Second

// WatchAddresses returns the new addresses of the node when they have changed, or nil when ctx ends.
func WatchAddresses(ctx context.Context, had []netip.Addr) []netip.Addr {
	tick := time.NewTicker(addressCheckInterval)
	defer tick.Stop()
	var last []netip.Addr
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		changed := ChangedAddresses(had)
		if changed != nil && slices.Equal(changed, last) {
			return changed
		}
		last = changed
	}
}
