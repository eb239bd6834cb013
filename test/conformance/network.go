package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"berth/test/hosts"
)

// network is where the control plane, the image registry and the nodes are. Without a LAN, the nodes share the
// network namespace of this machine, the hosts configure CNI, and Services and DNS are not available.
type network struct {
	address netip.Addr // of this machine, on which the control plane and the image registry listen
	lan     *hosts.LAN // nil: none
}

var (
	loopback  = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	onMachine = network{address: loopback}
)

// serviceCIDRs are the ranges of Services on a LAN.
const serviceCIDRs = "10.43.0.0/16,fd00:43::/108"

// newNetwork returns the network of this machine, or creates a LAN. The caller must close it.
func newNetwork(lan bool) (network, error) {
	if !lan {
		return onMachine, nil
	}
	l, err := hosts.NewLAN()
	if err != nil {
		return network{}, err
	}
	return network{address: l.Machine, lan: l}, nil
}

func (n network) close() error {
	if n.lan == nil {
		return nil
	}
	return n.lan.Close()
}

// podCIDRs returns the ranges of pods. This machine has routes to those on a LAN, so each LAN has its own.
func (n network) podCIDRs() string {
	if n.lan == nil {
		return "10.42.0.0/16"
	}
	number := n.address.As4()[2]
	return fmt.Sprintf("10.%d.0.0/16,fd42:%x::/48", 100+int(number), number)
}

// flags returns the flags of berth-control.
func (n network) flags() []string {
	if n.lan == nil {
		return nil
	}
	return []string{"--cluster-cidr", n.podCIDRs(), "--service-cluster-ip-range", serviceCIDRs}
}

// agentConfig returns fields of BerthConfiguration. On a LAN, the agent configures CNI itself.
func (n network) agentConfig() map[string]any {
	if n.lan == nil {
		return nil
	}
	return map[string]any{"cniPodCIDRs": []string{"node"}}
}

// route makes the pods of a node on the LAN reachable for the API server on this machine, which proxies to them.
func (n network) route(ctx context.Context, pl *controlPlane, node *node) error {
	if n.lan == nil {
		return nil
	}
	text, err := pl.kubectlOutput(ctx, "", "get", "node", node.name, "-o", "jsonpath={.spec.podCIDRs[*]}")
	if err != nil {
		return err
	}
	for cidr := range strings.FieldsSeq(text) {
		pods, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("node %s: %w", node.name, err)
		}
		if pods.Addr().Is4() { // the server uses the first address of a pod
			return n.lan.RouteFromMachine(pods, node.host)
		}
	}
	return fmt.Errorf("node %s: no IPv4 range of pods in %q", node.name, text)
}
