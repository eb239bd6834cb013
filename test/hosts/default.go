package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// Names from berth's own network configuration. A machine has one of each.
const (
	defaultBridge    = "cni0"
	defaultAddresses = "/var/lib/cni/networks/berth"
)

// ClaimDefaultNetwork waits until no other test uses the network whose configuration berth writes
// itself: hosts that use it cannot run in parallel. release removes the bridge and the stored
// addresses. Call it after the host has stopped.
func ClaimDefaultNetwork(ctx context.Context) (release func() error, err error) {
	// An abstract socket, which disappears with this process.
	var held *net.UnixListener
	err = WaitFor(ctx, "the default network to be free", func() (bool, error) {
		held, err = net.ListenUnix("unix", &net.UnixAddr{Name: "@berth-hosts-default-network", Net: "unix"})
		if errors.Is(err, syscall.EADDRINUSE) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat("/sys/class/net/" + defaultBridge); err == nil {
		return nil, errors.Join(fmt.Errorf("this machine already has a bridge %s", defaultBridge), held.Close())
	}
	return func() error {
		var errDelete error
		if _, err := os.Stat("/sys/class/net/" + defaultBridge); err == nil {
			_, errDelete = command("ip", "link", "delete", defaultBridge)
		}
		return errors.Join(errDelete, os.RemoveAll(defaultAddresses), held.Close())
	}, nil
}
