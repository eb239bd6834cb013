package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"berth/cri/criconfig"
)

// checkNames looks at the name servers that pods have of the host: one that listens
// on the host's loopback alone is no pod's to reach.
func (c checks) checkNames(add addItem) {
	file := c.config.Network.ResolvConf
	if file == "" {
		return // pods are to have none
	}
	var servers []string
	text, err := os.ReadFile(file)
	if err == nil {
		servers = criconfig.ParseResolv(string(text)).Nameservers
		err = reachable(file, servers)
	}
	add("name servers", false, err, fmt.Sprintf("%s of %s", strings.Join(servers, ", "), file),
		"set resolvConf to a file with servers that pods can reach, where systemd-resolved runs /run/systemd/resolve/resolv.conf: else pods with dnsPolicy Default, and on a node without clusterDNS all, cannot resolve names")
}

func reachable(file string, servers []string) error {
	if len(servers) == 0 {
		return errors.New(file + " names none")
	}
	beyond := slices.ContainsFunc(servers, func(s string) bool {
		a, err := netip.ParseAddr(s)
		return err == nil && !a.IsLoopback()
	})
	if !beyond {
		return fmt.Errorf("%s of %s: no pod with a network of its own reaches the host's loopback", strings.Join(servers, ", "), file)
	}
	return nil
}
