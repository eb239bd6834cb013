package main

import (
	"fmt"
	"strings"
)

// checkNameServers checks the name servers that pods inherit from the host. Pods cannot reach a
// name server on the loopback interface of the host.
func (c checks) checkNameServers(add addItem) {
	var n nameServers
	if n.use(c.config.Network); n.file.Path == "" {
		return // pods inherit no name servers
	}
	r, file, err := n.now()
	servers := strings.Join(r.Nameservers, ", ")
	switch {
	case err != nil:
	case servers == "":
		err = fmt.Errorf("no name servers in %s", file)
	case !r.ReachableFromPod():
		err = fmt.Errorf("%s in %s: a loopback address of the host, which pods cannot reach", servers, file)
	}
	detail := fmt.Sprintf("%s in %s", servers, file)
	if err == nil && file != n.file.Path {
		detail += ": " + n.file.Path + " contains only loopback addresses"
	}
	add("name servers", false, err, detail,
		"set resolvConf to a file with name servers that pods can reach: otherwise pods with dnsPolicy Default, and without clusterDNS all pods, cannot resolve names")
}
