package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/agent/plan"
)

// NetNS returns the path of the network namespace of a sandbox; empty with the
// host's network. Only the runtime's verbose status has it, which costs the
// runtime more than all other looks at a pod that starts: it is asked for when
// somebody wants to know, and once in the life of a sandbox.
func (c *Client) NetNS(ctx context.Context, id string) (string, error) {
	if path, known := c.netns.get(id); known {
		return path, nil
	}
	resp, err := c.sandboxStatus(ctx, id, true)
	if err != nil {
		return "", err
	}
	path, ok := netnsOf(resp.GetInfo())
	if !ok {
		return "", &plan.Error{Kind: plan.Unsupported, Err: fmt.Errorf("the runtime does not tell the network namespace of sandbox %s", id)}
	}
	c.netns.set(id, path)
	return path, nil
}

// netnsPaths remembers the network namespaces of sandboxes that were asked for.
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
