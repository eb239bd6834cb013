package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
)

const (
	nodeMaskIPv4 = 24
	nodeMaskIPv6 = 64
)

// podCIDRAllocator assigns a pod CIDR to each node.
type podCIDRAllocator struct {
	Config

	nodes     corelisters.NodeLister
	mu        sync.Mutex
	allocated map[string][]netip.Prefix // assigned, possibly not in the cache yet
}

func newNodeIPAMController(c Config) ([]*controller, error) {
	if len(c.ClusterCIDRs) == 0 {
		return nil, nil
	}
	nodes := c.Informers.Core().V1().Nodes()
	r := &podCIDRAllocator{Config: c, nodes: nodes.Lister(), allocated: map[string][]netip.Prefix{}}
	ctrl := c.newController(r.sync)
	return []*controller{ctrl}, ctrl.watch(nodes.Informer(), objectKey)
}

func (r *podCIDRAllocator) sync(ctx context.Context, name string) (time.Duration, error) {
	node, err := r.nodes.Get(name)
	if err != nil {
		r.mu.Lock()
		delete(r.allocated, name)
		r.mu.Unlock()
		return 0, ignoreNotFound(err)
	}
	if node.Spec.PodCIDR != "" || node.DeletionTimestamp != nil {
		return 0, nil
	}
	cidrs, err := r.allocate(name)
	if err != nil {
		r.Log.Warn("pod CIDR allocation failed", "node", name, "err", err)
		r.Events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable",
			name)
		return time.Minute, nil // reported by an event; the deletion of a node frees a CIDR
	}
	texts := make([]string, 0, len(cidrs))
	for _, p := range cidrs {
		texts = append(texts, p.String())
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID}, "spec": map[string]any{
		"podCIDR": texts[0], "podCIDRs": texts}})
	if err != nil {
		return 0, fmt.Errorf("assign pod CIDR to node %s: %w", name, err)
	}
	if _, err := r.Client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}); err != nil {
		return 0, fmt.Errorf("assign pod CIDR to node %s: %w", name, err)
	}
	r.Log.Info("pod CIDR assigned", "node", name, "podCIDRs", texts)
	return 0, nil
}

// allocate reserves the first free CIDR of each cluster CIDR for the node.
func (r *podCIDRAllocator) allocate(name string) ([]netip.Prefix, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have, ok := r.allocated[name]; ok {
		return have, nil
	}
	taken := map[netip.Prefix]bool{}
	for _, list := range r.allocated {
		for _, p := range list {
			taken[p] = true
		}
	}
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, node := range nodes {
		for _, text := range append(node.Spec.PodCIDRs, node.Spec.PodCIDR) {
			if p, err := netip.ParsePrefix(text); err == nil {
				taken[p] = true
			}
		}
	}
	out := make([]netip.Prefix, 0, len(r.ClusterCIDRs))
	for _, clusterCIDR := range r.ClusterCIDRs {
		p, ok := firstFree(clusterCIDR, taken)
		if !ok {
			return nil, fmt.Errorf("no pod CIDR left in %s", clusterCIDR)
		}
		out = append(out, p)
	}
	r.allocated[name] = out
	return out, nil
}

// firstFree returns the first node CIDR in clusterCIDR that does not overlap any in taken.
func firstFree(clusterCIDR netip.Prefix, taken map[netip.Prefix]bool) (netip.Prefix, bool) {
	bits := nodeMaskIPv4
	if clusterCIDR.Addr().Is6() {
		bits = nodeMaskIPv6
	}
	bits = max(bits, clusterCIDR.Bits())
	for p := netip.PrefixFrom(clusterCIDR.Masked().Addr(), bits); clusterCIDR.Contains(p.Addr()); {
		if !overlapsAny(p, taken) {
			return p, true
		}
		next, ok := nextPrefix(p)
		if !ok {
			break
		}
		p = next
	}
	return netip.Prefix{}, false
}

func overlapsAny(p netip.Prefix, taken map[netip.Prefix]bool) bool {
	if taken[p] {
		return true
	}
	for t := range taken {
		if t.Overlaps(p) {
			return true
		}
	}
	return false
}

// nextPrefix returns the following prefix of the same size. It reports false at the end of the
// address space.
func nextPrefix(p netip.Prefix) (netip.Prefix, bool) {
	bytes := p.Addr().AsSlice()
	i, step := (p.Bits()-1)/8, byte(1)<<(7-(p.Bits()-1)%8)
	for ; i >= 0; i, step = i-1, 1 {
		bytes[i] += step
		if bytes[i] >= step {
			break
		}
		if i == 0 {
			return netip.Prefix{}, false
		}
	}
	addr, ok := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, p.Bits()), ok
}
