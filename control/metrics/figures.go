package metrics

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// cacheTTL is how long figures, or why there are none, are told again without
	// asking the node.
	cacheTTL = 5 * time.Second
	// summaryTimeout bounds how long a node may take.
	summaryTimeout = 5 * time.Second
	// rateInterval is the time between two totals when a node tells no rates.
	rateInterval = time.Second
	// defaultWindow is the time that a rate told by a node is taken to be over.
	defaultWindow = 10 * time.Second
)

// SummaryFunc gets a node's figures: GET /stats/summary of its agent.
type SummaryFunc func(ctx context.Context, node *corev1.Node) (*stats.Summary, error)

// usage is what something uses at a time.
type usage struct {
	at     time.Time
	window time.Duration
	cpu    uint64 // billionths of a core
	memory uint64 // bytes of the working set
}

func (u usage) list() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(u.cpu), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

// nodeUsage are one node's at a time. Only what has both CPU and memory is there.
type nodeUsage struct {
	taken time.Time
	node  *usage
	pods  map[types.NamespacedName]map[string]usage // containers by name; pods of files have another UID here
}

// collector asks nodes and keeps what they said for a moment.
type collector struct {
	summary SummaryFunc

	mu    sync.Mutex
	nodes map[string]*nodeCache
}

// nodeCache is one node's figures. Its turn makes those who ask at once wait for one
// answer; the rest is of who has it.
type nodeCache struct {
	sem  chan struct{} // capacity 1
	last *nodeUsage
	raw  *stats.Summary

	lastErr   error // of the last time that the node was asked; nil: it has answered
	lastErrAt time.Time
}

// get gives a node's figures, not older than freshFor.
func (g *collector) get(ctx context.Context, node *corev1.Node) (*nodeUsage, error) {
	g.mu.Lock()
	k, known := g.nodes[node.Name]
	if !known {
		k = &nodeCache{sem: make(chan struct{}, 1)}
		g.nodes[node.Name] = k
	}
	g.mu.Unlock()
	select {
	case k.sem <- struct{}{}:
		defer func() { <-k.sem }()
	case <-ctx.Done():
		return nil, fmt.Errorf("ask node %s for its figures: %w", node.Name, ctx.Err())
	}
	switch {
	case k.last != nil && time.Since(k.last.taken) < cacheTTL:
		return k.last, nil
	case k.lastErr != nil && time.Since(k.lastErrAt) < cacheTTL:
		return nil, k.lastErr
	}
	err := k.refresh(ctx, g.summary, node)
	if err != nil {
		err = fmt.Errorf("ask node %s for its figures: %w", node.Name, err)
	}
	if ctx.Err() != nil { // who asked has gone, which says nothing of the node
		return nil, err
	}
	if k.lastErr, k.lastErrAt = err, time.Now(); err != nil {
		return nil, err
	}
	return k.last, nil
}

// refresh asks the node.
func (k *nodeCache) refresh(ctx context.Context, ask SummaryFunc, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
	defer cancel()
	now, err := ask(ctx, node)
	if err != nil {
		return err
	}
	if k.raw == nil && !hasRates(now) {
		k.raw = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rateInterval):
		}
		if now, err = ask(ctx, node); err != nil {
			return err
		}
	}
	k.last, k.raw = computeUsage(now, k.raw), now
	k.last.taken = time.Now()
	return nil
}

// prune drops nodes that are no more.
func (g *collector) prune(exists func(name string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.nodes {
		if !exists(name) {
			delete(g.nodes, name)
		}
	}
}

// hasRates reports whether all rates of CPU are told.
func hasRates(s *stats.Summary) bool {
	if s.Node.CPU == nil || s.Node.CPU.UsageNanoCores == nil {
		return false
	}
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			if c.CPU != nil && c.CPU.UsageNanoCores == nil {
				return false
			}
		}
	}
	return true
}

// computeUsage takes the figures from what a node said, rates from its totals before
// where it told none.
func computeUsage(now, before *stats.Summary) *nodeUsage {
	out := &nodeUsage{pods: map[types.NamespacedName]map[string]usage{}}
	totals := map[string]*stats.CPUStats{}
	var nodeBefore *stats.CPUStats
	if before != nil {
		nodeBefore = before.Node.CPU
		for _, p := range before.Pods {
			for _, c := range p.Containers {
				totals[p.PodRef.UID+"/"+c.Name] = c.CPU
			}
		}
	}
	if u, ok := usageOf(now.Node.CPU, nodeBefore, now.Node.Memory); ok {
		out.node = &u
	}
	for _, p := range now.Pods {
		containers := map[string]usage{}
		for _, c := range p.Containers {
			if u, ok := usageOf(c.CPU, totals[p.PodRef.UID+"/"+c.Name], c.Memory); ok {
				containers[c.Name] = u
			}
		}
		if len(containers) > 0 {
			out.pods[types.NamespacedName{Namespace: p.PodRef.Namespace, Name: p.PodRef.Name}] = containers
		}
	}
	return out
}

func usageOf(cpu, before *stats.CPUStats, memory *stats.MemoryStats) (usage, bool) {
	if cpu == nil || memory == nil || memory.WorkingSetBytes == nil {
		return usage{}, false
	}
	out := usage{at: cpu.Time.Time, window: defaultWindow, memory: *memory.WorkingSetBytes}
	if cpu.UsageNanoCores != nil {
		out.cpu = *cpu.UsageNanoCores
		return out, true
	}
	if before == nil || cpu.UsageCoreNanoSeconds == nil || before.UsageCoreNanoSeconds == nil {
		return usage{}, false
	}
	out.window = cpu.Time.Sub(before.Time.Time)
	if out.window <= 0 || *cpu.UsageCoreNanoSeconds < *before.UsageCoreNanoSeconds {
		return usage{}, false // restarted in between
	}
	out.cpu = uint64(float64(*cpu.UsageCoreNanoSeconds-*before.UsageCoreNanoSeconds) / out.window.Seconds())
	return out, true
}
