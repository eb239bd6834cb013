package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/agent/plan"
)

// NetNS returns the path of the network namespace of a sandbox. It is empty for the host network.
// Only the runtime's verbose status has the path, which costs the runtime more than all other calls
// while a pod starts. It is requested only on demand, and once per sandbox.
func (c *Client) NetNS(ctx context.Context, id string) (string, error) {
	if path, known := c.netnsCache.get(id); known {
		return path, nil
	}
	resp, err := c.sandboxStatus(ctx, id, true)
	if err != nil {
		return "", err
	}
	path, ok := parseNetNS(resp.GetInfo())
	if !ok {
		return "", &plan.Error{Kind: plan.Unsupported,
			Err: fmt.Errorf("the runtime does not report the network namespace of sandbox %s", id)}
	}
	c.netnsCache.set(id, path)
	return path, nil
}

// netnsCache caches the network namespaces of sandboxes.
type netnsCache struct {
	mu   sync.Mutex
	path map[string]string // by sandbox ID; empty: the host network
}

func (n *netnsCache) get(id string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.path[id]
	return p, ok
}

func (n *netnsCache) set(id, path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.path == nil {
		n.path = map[string]string{}
	}
	n.path[id] = path
}

func (n *netnsCache) delete(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.path, id)
}

// retain deletes all sandboxes that are not in the set.
func (n *netnsCache) retain(existing map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.path {
		if !existing[id] {
			delete(n.path, id)
		}
	}
}

// parseNetNS returns the path of the network namespace from the verbose status of a sandbox. It is
// empty for the host network. ok is false if the status has no runtime spec.
func parseNetNS(info map[string]string) (path string, ok bool) {
	var sandbox struct {
		RuntimeSpec *struct {
			Linux *struct {
				Namespaces []specs.LinuxNamespace `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if json.Unmarshal([]byte(info["info"]), &sandbox) != nil || sandbox.RuntimeSpec == nil ||
		sandbox.RuntimeSpec.Linux == nil {
		return "", false
	}
	for _, ns := range sandbox.RuntimeSpec.Linux.Namespaces {
		if ns.Type == specs.NetworkNamespace {
			return ns.Path, true
		}
	}
	return "", true
}
