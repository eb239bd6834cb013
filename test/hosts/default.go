package hosts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// What berth's own network configuration names: there is one of each per machine.
const (
	defaultBridge    = "cni0"
	defaultAddresses = "/var/lib/cni/networks/berth"
)

// ClaimDefaultNetwork waits until no other test has the network whose
// configuration berth writes itself: hosts that use it cannot run side by side.
// release takes the bridge and the kept addresses away; it is for after the
// host's end.
func ClaimDefaultNetwork(ctx context.Context) (release func() error, err error) {
	// A name without a file, which goes with this process.
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
		return nil, errors.Join(fmt.Errorf("this machine has a bridge %s already", defaultBridge), held.Close())
	}
	return func() error {
		var gone error
		if _, err := os.Stat("/sys/class/net/" + defaultBridge); err == nil {
			_, gone = command("ip", "link", "delete", defaultBridge)
		}
		return errors.Join(gone, os.RemoveAll(defaultAddresses), held.Close())
	}, nil
}
