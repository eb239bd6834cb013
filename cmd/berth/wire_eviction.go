package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/eviction"
	"berth/nodeapi"
)

// newLimits creates the eviction of pods that exceed their ephemeral storage limits.
func (b *berth) newLimits() *eviction.LocalStorageEnforcer {
	return eviction.NewLocalStorageEnforcer(eviction.LocalStorageOptions{
		Pods: b.agent.StatusCache.List, ExceedsVolumeLimit: b.host.volumes.ExceededSizeLimit,
		NewMeasurement: b.stats.Disk,
		Evict:          b.agent.EvictPod,
		OnEvicted:      b.metrics.CountEviction, Standalone: b.config.Standalone(), Log: b.log,
	})
}

// podMeter creates the measurement of pods for the eviction ranking.
func (b *berth) podMeter() *eviction.PodMeter {
	return &eviction.PodMeter{
		NewMeasurement: b.stats.Disk, LastUsage: b.limits.LastUsage, Memory: b.stats.Memory, Log: b.log,
	}
}

// newReclaimer creates the reclaim of memory, disk and process IDs under node pressure.
func (b *berth) newReclaimer() *eviction.Reclaimer {
	fs := b.fileSystems
	logs := func() string { return b.config.PodLogsDir }
	return eviction.NewReclaimer(eviction.ReclaimerOptions{
		Statuses: b.agent.StatusCache, Ready: b.agent.HasSynced, Measure: b.podMeter().Measure, Evict: b.agent.EvictPod,
		OnEvicted: b.metrics.CountEviction,
		Levels: []eviction.ReclaimLevel{
			{Name: "rotated logs", AppliesTo: fs.Covers(logs), Reclaim: b.removeRotatedLogs},
			{Name: "dead containers", AppliesTo: fs.Covers(fs.Containers, logs), Reclaim: b.removeDeadContainers},
			{Name: "unused images", AppliesTo: fs.Covers(fs.Images), Reclaim: b.removeUnusedImages},
		},
		RecordEvent: func(reason, message string) {
			if b.cluster != nil {
				b.cluster.events.RecordNodeEvent(corev1.EventTypeWarning, reason, message)
			}
		},
		MaxGrace: b.config.Eviction.MaxPodGracePeriod, Standalone: b.config.Standalone(), Log: b.log,
	})
}

func (b *berth) removeRotatedLogs(context.Context, func() bool) error {
	return b.podLogs.RemoveRotated()
}

// removeDeadContainers makes the workers remove terminated containers, and then removes
// orphaned logs.
func (b *berth) removeDeadContainers(ctx context.Context, _ func() bool) error {
	changed, stop := b.agent.StatusCache.Subscribe()
	defer stop()
	b.diskPressure.Store(true)
	b.agent.SyncAllPods()
	eviction.AwaitDeadContainersRemoved(ctx, b.agent.StatusCache.List, changed)
	logs := b.logCollector()
	logs.MinAge = 0
	_, err := logs.RunOnce(ctx)
	return errors.Join(err, b.runtime.client.CollectGarbage(ctx))
}

// removeUnusedImages removes unused images until there is enough space.
func (b *berth) removeUnusedImages(ctx context.Context, enough func() bool) error {
	c, err := b.runtime.images.FreeSpace(ctx, b.imageGarbage(ctx), enough)
	b.imagesCollected(c, nil)
	return err
}

// evictionOrder returns the current eviction order.
func (b *berth) evictionOrder(ctx context.Context, signal string) (nodeapi.EvictionPreview, error) {
	b.agent.WaitForSync(ctx, syncTimeout)
	return b.reclaimer.Preview(ctx, b.pressure.Config, b.pressure.Latest(), signal)
}
