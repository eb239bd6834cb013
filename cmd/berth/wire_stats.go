package main

import (
	"context"
	"time"

	"berth/agent/status"
	"berth/node/stats"
	"berth/nodeapi"
	"berth/nodeapi/server"
)

// newStats creates the collector of resource usage.
func (b *berth) newStats() *stats.Collector {
	return &stats.Collector{
		Cgroups: b.host.cgroups, Volumes: b.host.volumes, Runtime: b.runtime.client,
		Pods:     func() []*status.Snapshot { return b.agent.StatusCache.List() },
		NodeName: b.config.NodeName, RootDir: b.config.RootDir, CPUs: int(b.host.resources.Capacity.Cpu().Value()), Log: b.log,
	}
}

// nodeStats measures the usage of the node and its pods for the kubelet HTTP API.
func (b *berth) nodeStats(ctx context.Context, disks bool) (server.Stats, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.stats.Stats(ctx, disks)
}

// top measures the usage of pods for the local API.
func (b *berth) top(ctx context.Context, filter nodeapi.PodFilter, window time.Duration) (nodeapi.Top, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.stats.Top(ctx, filter, window)
}
