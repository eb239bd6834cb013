package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/eviction"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri"
	"berth/cri/crilog"
	"berth/node"
	"berth/node/pressure"
)

// newLimits creates the eviction of pods that exceed their ephemeral storage limits.
func (b *berth) newLimits() *eviction.LocalStorageEnforcer {
	return eviction.NewLocalStorageEnforcer(eviction.LocalStorageOptions{
		Pods: b.agent.StatusCache.All, ExceedsVolumeLimit: b.host.volumes.ExceededSizeLimit, NewMeasurement: b.diskOfPods, Evict: b.agent.EvictPod,
		OnEvicted: b.metrics.CountEviction, Standalone: b.config.Standalone(), Log: b.log,
	})
}

// newReclaimer creates the reclaim of memory, disk and process IDs under node pressure.
func (b *berth) newReclaimer(at *places) *eviction.Reclaimer {
	on := func(dirs ...func() string) func(pressure.Signal) bool {
		return func(s pressure.Signal) bool {
			of := at.of(s)
			for _, dir := range dirs {
				if d := dir(); of != "" && d != "" && node.SameFileSystem(of, d) {
					return true
				}
			}
			return false
		}
	}
	logs := func() string { return b.config.PodLogsDir }
	return eviction.NewReclaimer(eviction.ReclaimerOptions{
		Statuses: b.agent.StatusCache, Ready: b.agent.HasSynced, Measure: b.measurePods, Evict: b.agent.EvictPod, OnEvicted: b.metrics.CountEviction,
		Levels: []eviction.ReclaimLevel{
			{Name: "rotated logs", AppliesTo: on(logs), Reclaim: b.dropRotated},
			{Name: "dead containers", AppliesTo: on(at.containers, logs), Reclaim: b.dropDead},
			{Name: "unused images", AppliesTo: on(at.imagesDir), Reclaim: b.dropImages},
		},
		RecordEvent: func(reason, message string) {
			if b.cluster != nil {
				b.cluster.events.OfNode(corev1.EventTypeWarning, reason, message)
			}
		},
		MaxGrace: b.config.Eviction.MaxPodGracePeriod, Standalone: b.config.Standalone(), Log: b.log,
	})
}

// dropRotated deletes the rotated logs of all containers.
func (b *berth) dropRotated(context.Context, func() bool) error {
	var errs []error
	for _, s := range b.agent.StatusCache.All() {
		for _, k := range s.Seen.Containers {
			if k.LogPath != "" {
				errs = append(errs, crilog.RemoveRotated(k.LogPath))
			}
		}
	}
	return errors.Join(errs...)
}

const deadTimeout = 15 * time.Second // for the workers to remove terminated containers

// dropDead lets the workers remove terminated containers while disk space is low, and then removes
// orphaned logs.
func (b *berth) dropDead(ctx context.Context, _ func() bool) error {
	changed, stop := b.agent.StatusCache.Changes()
	defer stop()
	b.diskPressure.Store(true)
	b.agent.SyncAllPods()
	bounded, cancel := context.WithTimeout(ctx, deadTimeout)
	defer cancel()
	for deadLeft(b.agent.StatusCache.All()) && bounded.Err() == nil {
		select {
		case <-bounded.Done():
		case <-changed:
		}
	}
	logs := b.logCollector()
	logs.MinAge = 0
	_, err := logs.RunOnce(ctx)
	return errors.Join(err, b.runtime.client.CollectGarbage(ctx))
}

// deadLeft reports whether there is a terminated container that is kept only for inspection.
func deadLeft(all []*status.Snapshot) bool {
	for _, s := range all {
		over := s.Status.Phase == corev1.PodSucceeded || s.Status.Phase == corev1.PodFailed
		newest := map[string]bool{}
		for _, k := range s.Seen.Containers {
			if k.State == plan.Exited && (over || newest[k.Name]) {
				return true
			}
			newest[k.Name] = true
		}
	}
	return false
}

// dropImages removes unused images until there is enough space.
func (b *berth) dropImages(ctx context.Context, enough func() bool) error {
	c, err := b.runtime.images.FreeSpace(ctx, b.imageGarbage(ctx), enough)
	b.imagesCollected(c, nil)
	return err
}

// measurePods measures the usage of pods for a signal.
func (b *berth) measurePods(ctx context.Context, of pressure.Signal, pods []*status.Snapshot) []pressure.Candidate {
	if of.Condition() == corev1.NodeDiskPressure {
		d := eviction.DiskMeter{NewMeasurement: b.diskOfPods, LastUsage: b.limits.LastUsage, Log: b.log}
		return d.Measure(ctx, pods)
	}
	out := make([]pressure.Candidate, 0, len(pods))
	for _, s := range pods {
		c := pressure.Candidate{Pod: plan.WithResources(s.Pod, s.Memory.Sizes.Allocated)}
		var err error
		if c.Usage, err = b.useOfMemory(ctx, s); err != nil {
			b.log.Warn("pod usage measurement failed", "pod", s.Pod.Namespace+"/"+s.Pod.Name, "err", err)
		}
		c.Measured = err == nil
		out = append(out, c)
	}
	return out
}

func (b *berth) useOfMemory(ctx context.Context, s *status.Snapshot) (u pressure.Usage, err error) {
	ids := map[types.UID][]string{s.Pod.UID: nil}
	for _, k := range s.Seen.Containers {
		if k.State == plan.Running {
			ids[s.Pod.UID] = append(ids[s.Pod.UID], k.ID)
		}
	}
	all, err := b.host.cgroups.Usage(ctx, ids)
	if err != nil {
		return u, err
	}
	now := all[s.Pod.UID] // a pod without a cgroup uses nothing
	u.Memory, u.Tasks = int64(now.Pod.WorkingSet), int64(max(now.Pod.Tasks, now.Pod.Processes))
	for _, k := range s.Seen.Containers {
		if c, there := now.Containers[k.ID]; there {
			u.Containers = append(u.Containers, pressure.ContainerUsage{Name: k.Name, Memory: int64(c.WorkingSet)})
		}
	}
	return u, nil
}

// diskOfPods measures the disk usage of pods. The writable layers are queried from the runtime
// once, for the first pod.
func (b *berth) diskOfPods(ctx context.Context) eviction.MeasureFunc {
	layers := sync.OnceValues(func() (map[string]cri.WritableLayer, error) {
		all, err := b.runtime.client.WritableLayers(ctx)
		if err != nil {
			err = fmt.Errorf("writable layers of containers: %w", err)
		}
		return all, err
	})
	return func(ctx context.Context, s *status.Snapshot) (pressure.Usage, error) {
		return b.useOfDisk(ctx, s, layers)
	}
}

func (b *berth) useOfDisk(ctx context.Context, s *status.Snapshot, layers func() (map[string]cri.WritableLayer, error)) (u pressure.Usage, err error) {
	u.Volumes.Bytes, u.Volumes.Inodes, err = b.host.volumes.DiskUsage(ctx, s.Pod)
	written, unknown := layers()
	logs := map[string]bool{}
	for _, k := range s.Seen.Containers {
		l := written[k.ID]
		u.Layers.Bytes, u.Layers.Inodes = u.Layers.Bytes+int64(l.Bytes), u.Layers.Inodes+int64(l.Inodes)
		c := pressure.ContainerUsage{Name: k.Name, Disk: int64(l.Bytes), Layer: int64(l.Bytes)}
		if dir := filepath.Dir(k.LogPath); k.LogPath != "" && !logs[dir] { // one directory for all instances of a container
			logs[dir] = true
			bytes, files := logsOf(s, k.Name)
			u.Volumes.Bytes, u.Volumes.Inodes = u.Volumes.Bytes+int64(bytes), u.Volumes.Inodes+int64(files)
			c.Disk += int64(bytes)
		}
		u.Containers = append(u.Containers, c)
	}
	return u, errors.Join(err, unknown)
}
