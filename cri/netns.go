package cri

import (
	"encoding/json"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// netnsPaths remembers the network namespaces of sandboxes, because asking for
// one means the runtime's verbose status, which is large.
type netnsPaths struct {
	mu   sync.Mutex
	path map[string]string // by sandbox ID; empty: of the host
}

func (n *netnsPaths) get(id string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.path[id]
	return p, ok
}

func (n *netnsPaths) set(id, path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.path == nil {
		n.path = map[string]string{}
	}
	n.path[id] = path
}

func (n *netnsPaths) forget(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.path, id)
}

// retain forgets all sandboxes that are not there any more.
func (n *netnsPaths) retain(there map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.path {
		if !there[id] {
			delete(n.path, id)
		}
	}
}

// netnsOf reads the path of the network namespace from a sandbox's verbose
// status; empty with the host's network. It is not ok if the status does not
// hold the sandbox's runtime spec.
func netnsOf(info map[string]string) (path string, ok bool) {
	var sandbox struct {
		RuntimeSpec *struct {
			Linux *struct {
				Namespaces []specs.LinuxNamespace `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if json.Unmarshal([]byte(info["info"]), &sandbox) != nil || sandbox.RuntimeSpec == nil || sandbox.RuntimeSpec.Linux == nil {
		return "", false
	}
	for _, ns := range sandbox.RuntimeSpec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			return ns.Path, true
		}
	}
	return "", true
}
