package main

import (
	"fmt"
	"strings"
)

// checkNames looks at the name servers that pods have of the host: one that listens
// on the host's loopback alone is no pod's to reach.
func (c checks) checkNames(add addItem) {
	var n names
	if n.use(c.config.Network); n.file.Path == "" {
		return // pods are to have none but their own loopback
	}
	r, file, err := n.now()
	servers := strings.Join(r.Nameservers, ", ")
	switch {
	case err != nil:
	case servers == "":
		err = fmt.Errorf("%s names none", file)
	case !r.ReachableFromPod():
		err = fmt.Errorf("%s of %s: no pod with a network of its own reaches the host's loopback", servers, file)
	}
	detail := fmt.Sprintf("%s of %s", servers, file)
	if err == nil && file != n.file.Path {
		detail += ": " + n.file.Path + " names the host's loopback alone"
	}
	add("name servers", false, err, detail,
		"set resolvConf to a file with servers that pods can reach: else pods with dnsPolicy Default, and on a node without clusterDNS all, cannot resolve names")
}
