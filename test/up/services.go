package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/services/proxy"
	"berth/test/hosts"
)

// The quick start runs in the network namespace of the machine. It routes Services there only if no other
// berth does, and records that it does, so that make down removes the rules and the address.
const (
	servicesTable = "berth-services"
	dnsAddress    = "10.43.0.10"
	nodePort      = "30007" // of examples/my-service.yaml
)

// servicesRecord is the file that exists while the quick start routes Services.
func servicesRecord() string { return path("services") }

// servicesSetting returns the value of serviceProxy and clusterDNSServer.
func servicesSetting() (string, error) {
	if s := os.Getenv("BERTH_UP_SERVICES"); s != "" {
		return s, nil
	}
	busy, err := routesServices()
	if err != nil {
		return "", err
	}
	if busy {
		logStep("another berth routes Services on this machine: the quick start does not")
		return "off", nil
	}
	return "auto", os.WriteFile(servicesRecord(), nil, 0o644)
}

// routesServices reports whether a berth routes Services in this network namespace.
func routesServices() (bool, error) {
	tables, err := new(nftables.Conn).ListTables()
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == servicesTable }), nil
}

// removeServices removes the rules and the address of the DNS server, if the quick start has made them.
func removeServices() error {
	if _, err := os.Stat(servicesRecord()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := proxy.Remove(0); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(netip.PrefixFrom(netip.MustParseAddr(dnsAddress), 32).String())
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(lo, address); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove %s from the loopback interface: %w", dnsAddress, err)
	}
	return os.Remove(servicesRecord())
}

// showService reaches the example Service by node port and by name.
func (n *node) showService(ctx context.Context, s *server) error {
	if _, err := os.Stat(servicesRecord()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	fmt.Println("\n$ kubectl get service my-service")
	if err := s.print(ctx, "get", "service", "my-service"); err != nil {
		return err
	}
	ip, err := s.run(ctx, "get", "nodes", "-o",
		`jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`)
	if err != nil {
		return err
	}
	url := "http://" + strings.Fields(ip)[0] + ":" + nodePort
	var page string
	if err := hosts.WaitFor(ctx, "the Service at "+url, func() (bool, error) {
		page, err = get(ctx, url)
		return err == nil, nil
	}); err != nil {
		return err
	}
	title, _, _ := strings.Cut(strings.TrimSpace(page), "\n")
	fmt.Printf("\n$ curl %s\n%s …\n", url, title)
	for _, args := range [][]string{{"services", "my-service"}, {"dns", "query", "my-service"}} {
		fmt.Println("\n$ berth", strings.Join(args, " "))
		if err := n.berth(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}
