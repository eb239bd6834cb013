package main

import (
	"sync/atomic"

	"berth/cri/criconfig"
	"berth/internal/nodeconfig"
	"berth/node"
)

// nameServers is the resolver configuration that pods inherit from the host.
type nameServers struct {
	file, fallback node.HostFile          // fallback is used if file has no name server that pods can reach
	lastFile       atomic.Pointer[string] // the file that was used last; empty: none could be read
}

func (n *nameServers) use(c nodeconfig.Network) {
	n.file.Path, n.fallback.Path = c.ResolvConf, c.FallbackResolvConf
}

// now returns the current configuration and its file; empty: pods inherit none, or there is none.
func (n *nameServers) now() (r criconfig.ResolvConf, file string, err error) {
	if n.file.Path == "" {
		return r, "", nil
	}
	text, err := n.file.Read()
	if err != nil {
		return r, "", err
	}
	r = criconfig.ParseResolvConf(string(text))
	if n.fallback.Path == "" || len(r.Nameservers) == 0 || r.ReachableFromPod() {
		return r, n.file.Path, nil
	}
	if text, err := n.fallback.Read(); err == nil {
		if other := criconfig.ParseResolvConf(string(text)); other.ReachableFromPod() {
			return other, n.fallback.Path, nil
		}
	}
	return r, n.file.Path, nil
}
