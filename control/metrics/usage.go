package metrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// cacheTTL is how long the usage of a node, or the error of the last request, is reused.
	cacheTTL = 5 * time.Second
	// summaryTimeout limits a request to a node.
	summaryTimeout = 5 * time.Second
	// rateInterval is the time between two requests if a node reports no CPU rates.
	rateInterval = time.Second
	// defaultWindow is the assumed window of a CPU rate that a node reports.
	defaultWindow = 10 * time.Second
)

// SummaryFunc requests GET /stats/summary from the kubelet of a node.
type SummaryFunc func(ctx context.Context, node *corev1.Node) (*stats.Summary, error)

// usage is the resource usage of a node or container at a time.
type usage struct {
	at     time.Time
	window time.Duration
	cpu    uint64 // in nanocores
	memory uint64 // working set in bytes
}

func (u usage) list() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(u.cpu), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

// nodeUsage is the usage of a node and its pods at a time. It contains only entries with both CPU
// and memory.
type nodeUsage struct {
	taken time.Time
	node  *usage
	pods  map[types.NamespacedName]map[string]usage // containers by name; not by UID, which differs for static pods
}

// collector requests and caches the usage of nodes.
type collector struct {
	summary SummaryFunc

	mu    sync.Mutex
	nodes map[string]*nodeCache
}

// nodeCache caches the usage of one node. The semaphore makes concurrent requests share one
// response and guards the other fields.
type nodeCache struct {
	sem  chan struct{} // capacity 1
	last *nodeUsage
	raw  *stats.Summary

	lastErr   error // error of the last request, nil if it succeeded
	lastErrAt time.Time
}

// get returns the usage of a node, at most cacheTTL old.
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
		return nil, fmt.Errorf("get stats summary of node %s: %w", node.Name, ctx.Err())
	}
	switch {
	case k.last != nil && time.Since(k.last.taken) < cacheTTL:
		return k.last, nil
	case k.lastErr != nil && time.Since(k.lastErrAt) < cacheTTL:
		return nil, k.lastErr
	}
	err := k.refresh(ctx, g.summary, node)
	if err != nil {
		err = fmt.Errorf("get stats summary of node %s: %w", node.Name, err)
	}
	if ctx.Err() != nil { // canceled by the caller: not an error of the node
		return nil, err
	}
	if k.lastErr, k.lastErrAt = err, time.Now(); err != nil {
		return nil, err
	}
	return k.last, nil
}

// refresh requests the summary and computes the usage.
func (k *nodeCache) refresh(ctx context.Context, fetch SummaryFunc, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, summaryTimeout)
	defer cancel()
	now, err := fetch(ctx, node)
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
		if now, err = fetch(ctx, node); err != nil {
			return err
		}
	}
	k.last, k.raw = computeUsage(now, k.raw), now
	k.last.taken = time.Now()
	return nil
}

// prune drops the entries of deleted nodes.
func (g *collector) prune(exists func(name string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name := range g.nodes {
		if !exists(name) {
			delete(g.nodes, name)
		}
	}
}

// hasRates reports whether the summary has a CPU rate for the node and for each container.
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

// computeUsage computes the usage from a summary. CPU rates that are missing are computed from the
// totals of the previous summary.
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
		return usage{}, false // restarted in the meantime
	}
	out.cpu = uint64(float64(*cpu.UsageCoreNanoSeconds-*before.UsageCoreNanoSeconds) / out.window.Seconds())
	return out, true
}

// maxSummarySize limits the response of a node, in bytes.
const maxSummarySize = 64 << 20

// FetchSummary requests the stats summary of the kubelet with the given URL.
func FetchSummary(ctx context.Context, client *http.Client, kubelet *url.URL) (*stats.Summary, error) {
	at := kubelet.JoinPath("/stats/summary").String() + "?only_cpu_and_memory=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: unexpected status %s", at, res.Status)
	}
	out := &stats.Summary{}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxSummarySize)).Decode(out); err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return out, nil
}
