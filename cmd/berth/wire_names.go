package main

import (
	"sync/atomic"

	"berth/cri/criconfig"
	"berth/internal/nodeconfig"
	"berth/node"
)

// names are the name servers that pods have of the host.
type names struct {
	file, instead node.HostFile          // the second counts while the first names none that pods reach
	told          atomic.Pointer[string] // which counted last; empty: none could be read
}

func (n *names) use(c nodeconfig.Network) {
	n.file.Path, n.instead.Path = c.ResolvConf, c.FallbackResolvConf
}

// now is what counts now, and the file that it is of; empty: pods are to have none, or
// there is none.
func (n *names) now() (r criconfig.ResolvConf, file string, err error) {
	if n.file.Path == "" {
		return r, "", nil
	}
	text, err := n.file.Read()
	if err != nil {
		return r, "", err
	}
	r = criconfig.ParseResolvConf(string(text))
	if n.instead.Path == "" || len(r.Nameservers) == 0 || r.ReachableFromPod() {
		return r, n.file.Path, nil
	}
	if text, err := n.instead.Read(); err == nil {
		if other := criconfig.ParseResolvConf(string(text)); other.ReachableFromPod() {
			return other, n.instead.Path, nil
		}
	}
	return r, n.file.Path, nil
}
