package main

import (
	"context"
	"fmt"

	"berth/node"
)

// errAddressesChanged restarts the agent. The addresses are in the status of every pod, in hosts
// files, in certificates and in the Node, which cannot be updated one by one.
var errAddressesChanged = fmt.Errorf("node addresses changed: %w", errReload)

// watchAddresses returns errAddressesChanged or, when ctx ends, nil. Configured addresses never
// change.
func (b *berth) watchAddresses(ctx context.Context) error {
	if len(b.config.NodeIPs) > 0 {
		return nil
	}
	if changed := node.WatchAddresses(ctx, b.host.addrs); changed != nil {
		b.log.Info("node addresses changed, restarting", "had", b.host.addrs, "has", changed)
		return errAddressesChanged
	}
	return nil
}
