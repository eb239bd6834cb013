package check

import (
	"fmt"
	"strings"

	"berth/node"
)

// CheckNameServers checks the name servers that pods inherit from the host. Pods cannot reach a
// name server on the loopback interface of the host.
func (c Node) CheckNameServers(add AddFunc) {
	var n node.PodResolvConf
	if n.SetPaths(c.Config.Network.ResolvConf, c.Config.Network.FallbackResolvConf); n.File.Path == "" {
		return // pods inherit no name servers
	}
	r, file, err := n.Read()
	servers := strings.Join(r.Nameservers, ", ")
	switch {
	case err != nil:
	case servers == "":
		err = fmt.Errorf("no name servers in %s", file)
	case !r.ReachableFromPod():
		err = fmt.Errorf("%s in %s: a loopback address of the host, which pods cannot reach", servers, file)
	}
	detail := fmt.Sprintf("%s in %s", servers, file)
	if err == nil && file != n.File.Path {
		detail += ": " + n.File.Path + " contains only loopback addresses"
	}
	add(
		"name servers",
		false,
		err,
		detail,
		"set resolvConf to a file with name servers that pods can reach: otherwise pods with dnsPolicy Default, and "+
			"without clusterDNS all pods, cannot resolve names",
	)
}
