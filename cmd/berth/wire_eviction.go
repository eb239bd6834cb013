package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"berth/agent/eviction"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri/crilog"
	"berth/node/pressure"
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

// newReclaimer creates the reclaim of memory, disk and process IDs under node pressure.
func (b *berth) newReclaimer() *eviction.Reclaimer {
	fs := b.fileSystems
	logs := b.config.PodLogsDir
	return eviction.NewReclaimer(eviction.ReclaimerOptions{
		Statuses: b.agent.StatusCache, Ready: b.agent.HasSynced, Measure: b.measurePods, Evict: b.agent.EvictPod,
		OnEvicted: b.metrics.CountEviction,
		Levels: []eviction.ReclaimLevel{
			{Name: "rotated logs", AppliesTo: func(s pressure.Signal) bool { return fs.SignalCovers(s, logs) }, Reclaim: b.removeRotatedLogs},
			{Name: "dead containers", AppliesTo: func(s pressure.Signal) bool { return fs.SignalCovers(s, fs.Containers(), logs) }, Reclaim: b.removeDeadContainers},
			{Name: "unused images", AppliesTo: func(s pressure.Signal) bool { return fs.SignalCovers(s, fs.Images()) }, Reclaim: b.removeUnusedImages},
		},
		RecordEvent: func(reason, message string) {
			if b.cluster != nil {
				b.cluster.events.RecordNodeEvent(corev1.EventTypeWarning, reason, message)
			}
		},
		MaxGrace: b.config.Eviction.MaxPodGracePeriod, Standalone: b.config.Standalone(), Log: b.log,
	})
}

// removeRotatedLogs deletes the rotated logs of all containers.
func (b *berth) removeRotatedLogs(context.Context, func() bool) error {
	var errs []error
	for _, s := range b.agent.StatusCache.List() {
		for _, k := range s.Observed.Containers {
			if k.LogPath != "" {
				errs = append(errs, crilog.RemoveRotated(k.LogPath))
			}
		}
	}
	return errors.Join(errs...)
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

// measurePods measures the usage of pods for a signal.
func (b *berth) measurePods(ctx context.Context, of pressure.Signal, pods []*status.Snapshot) []pressure.Candidate {
	if of.Condition() == corev1.NodeDiskPressure {
		d := eviction.DiskMeter{NewMeasurement: b.stats.Disk, LastUsage: b.limits.LastUsage, Log: b.log}
		return d.Measure(ctx, pods)
	}
	out := make([]pressure.Candidate, 0, len(pods))
	for _, s := range pods {
		c := pressure.Candidate{Pod: plan.WithResources(s.Pod, s.Memory.Resources.Allocated)}
		var err error
		if c.Usage, err = b.stats.Memory(ctx, s); err != nil {
			b.log.Warn("pod usage measurement failed", "pod", s.Pod.Namespace+"/"+s.Pod.Name, "err", err)
		}
		c.Measured = err == nil
		out = append(out, c)
	}
	return out
}
