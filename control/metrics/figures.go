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
	// freshFor is how long figures, or why there are none, are told again without
	// asking the node.
	freshFor = 5 * time.Second
	// askWithin bounds how long a node may take.
	askWithin = 5 * time.Second
	// rateOver is the time between two totals when a node tells no rates.
	rateOver = time.Second
	// window is the time that a rate told by a node is taken to be over.
	window = 10 * time.Second
)

// Ask gets a node's figures: GET /stats/summary of its agent.
type Ask func(ctx context.Context, node *corev1.Node) (*stats.Summary, error)

// use is what something uses at a time.
type use struct {
	at     time.Time
	over   time.Duration
	cpu    uint64 // billionths of a core
	memory uint64 // bytes of the working set
}

func (u use) list() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(u.cpu), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

// figures are one node's at a time. Only what has both CPU and memory is there.
type figures struct {
	taken time.Time
	node  *use
	pods  map[types.NamespacedName]map[string]use // containers by name; pods of files have another UID here
}

// gatherer asks nodes and keeps what they said for a moment.
type gatherer struct {
	ask Ask

	mu    sync.Mutex
	nodes map[string]*keeping
}

// keeping is one node's figures. Its turn makes those who ask at once wait for one
// answer; the rest is of who has it.
type keeping struct {
	turn chan struct{} // capacity 1
	last *figures
	raw  *stats.Summary

	failed   error // of the last time that the node was asked; nil: it has answered
	failedAt time.Time
}

// of gives a node's figures, not older than freshFor.
func (g *gatherer) of(ctx context.Context, node *corev1.Node) (*figures, error) {
	g.mu.Lock()
	k, known := g.nodes[node.Name]
	if !known {
		k = &keeping{turn: make(chan struct{}, 1)}
		g.nodes[node.Name] = k
	}
	g.mu.Unlock()
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("ask node %s for its figures: %w", node.Name, ctx.Err())
	}
	switch {
	case k.last != nil && time.Since(k.last.taken) < freshFor:
		return k.last, nil
	case k.failed != nil && time.Since(k.failedAt) < freshFor:
		return nil, k.failed
	}
	err := k.look(ctx, g.ask, node)
	if err != nil {
		err = fmt.Errorf("ask node %s for its figures: %w", node.Name, err)
	}
	if ctx.Err() != nil { // who asked has gone, which says nothing of the node
		return nil, err
	}
	if k.failed, k.failedAt = err, time.Now(); err != nil {
		return nil, err
	}
	return k.last, nil
}

// look asks the node.
func (k *keeping) look(ctx context.Context, ask Ask, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	now, err := ask(ctx, node)
	if err != nil {
		return err
	}
	if k.raw == nil && !rated(now) {
		k.raw = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rateOver):
		}
		if now, err = ask(ctx, node); err != nil {
			return err
		}
	}
	k.last, k.raw = read(now, k.raw), now
	k.last.taken = time.Now()
	return nil
}

// forget drops nodes that are no more.
func (g *gatherer) forget(exists func(name string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.nodes {
		if !exists(name) {
			delete(g.nodes, name)
		}
	}
}

// rated reports whether all rates of CPU are told.
func rated(s *stats.Summary) bool {
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

// read takes the figures from what a node said, rates from its totals before
// where it told none.
func read(now, before *stats.Summary) *figures {
	out := &figures{pods: map[types.NamespacedName]map[string]use{}}
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
	if u, ok := useOf(now.Node.CPU, nodeBefore, now.Node.Memory); ok {
		out.node = &u
	}
	for _, p := range now.Pods {
		containers := map[string]use{}
		for _, c := range p.Containers {
			if u, ok := useOf(c.CPU, totals[p.PodRef.UID+"/"+c.Name], c.Memory); ok {
				containers[c.Name] = u
			}
		}
		if len(containers) > 0 {
			out.pods[types.NamespacedName{Namespace: p.PodRef.Namespace, Name: p.PodRef.Name}] = containers
		}
	}
	return out
}

func useOf(cpu, before *stats.CPUStats, memory *stats.MemoryStats) (use, bool) {
	if cpu == nil || memory == nil || memory.WorkingSetBytes == nil {
		return use{}, false
	}
	out := use{at: cpu.Time.Time, over: window, memory: *memory.WorkingSetBytes}
	if cpu.UsageNanoCores != nil {
		out.cpu = *cpu.UsageNanoCores
		return out, true
	}
	if before == nil || cpu.UsageCoreNanoSeconds == nil || before.UsageCoreNanoSeconds == nil {
		return use{}, false
	}
	out.over = cpu.Time.Sub(before.Time.Time)
	if out.over <= 0 || *cpu.UsageCoreNanoSeconds < *before.UsageCoreNanoSeconds {
		return use{}, false // restarted in between
	}
	out.cpu = uint64(float64(*cpu.UsageCoreNanoSeconds-*before.UsageCoreNanoSeconds) / out.over.Seconds())
	return out, true
}
