package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth/agent/board"
	"berth/agent/eviction"
	"berth/agent/plan"
	"berth/cri"
	"berth/cri/crilog"
	"berth/node"
	"berth/node/pressure"
)

// limits evicts pods that take more of the disk than their limits let them.
func (b *berth) limits() *eviction.Limits {
	return eviction.NewLimits(eviction.Options{
		Pods: b.agent.Board.All, Over: b.host.volumes.Over, Disk: b.diskOfPods, Evict: b.agent.Evict,
		Evicted: b.metrics.Evicted, Standalone: b.config.Standalone(), Log: b.log,
	})
}

// newRelief makes what frees memory, disk and processes when the node runs short.
func (b *berth) newRelief(at *places) *eviction.Relief {
	on := func(dirs ...func() string) func(pressure.Signal) bool {
		return func(s pressure.Signal) bool {
			of := at.of(s)
			for _, dir := range dirs {
				if d := dir(); of != "" && d != "" && node.SameDisk(of, d) {
					return true
				}
			}
			return false
		}
	}
	logs := func() string { return b.config.PodLogsDir }
	return eviction.NewRelief(eviction.ReliefOptions{
		Board: b.agent.Board, Ready: b.agent.Told, Measure: b.measurePods, Evict: b.agent.Evict, Evicted: b.metrics.Evicted,
		Rungs: []eviction.Rung{
			{Name: "rotated logs", Serves: on(logs), Free: b.dropRotated},
			{Name: "dead containers", Serves: on(at.containers, logs), Free: b.dropDead},
			{Name: "unused images", Serves: on(at.imagesDir), Free: b.dropImages},
		},
		Tell: func(reason, message string) {
			if b.joined != nil {
				b.joined.events.OfNode(corev1.EventTypeWarning, reason, message)
			}
		},
		MaxGrace: b.config.Eviction.MaxPodGracePeriod, Standalone: b.config.Standalone(), Log: b.log,
	})
}

// dropRotated deletes the rotated logs of all containers.
func (b *berth) dropRotated(context.Context, func() bool) error {
	var errs []error
	for _, s := range b.agent.Board.All() {
		for _, k := range s.Seen.Containers {
			if k.LogPath != "" {
				errs = append(errs, crilog.DropRotated(k.LogPath))
			}
		}
	}
	return errors.Join(errs...)
}

const deadBound = 15 * time.Second // for the workers to remove what has ended

// dropDead has the workers remove what has ended, as long as disk is short, and
// then the logs that are nobody's.
func (b *berth) dropDead(ctx context.Context, _ func() bool) error {
	changed, stop := b.agent.Board.Changes()
	defer stop()
	b.short.Store(true)
	b.agent.NudgeAll()
	bounded, cancel := context.WithTimeout(ctx, deadBound)
	defer cancel()
	for deadLeft(b.agent.Board.All()) && bounded.Err() == nil {
		select {
		case <-bounded.Done():
		case <-changed:
		}
	}
	logs := b.logCollector()
	logs.MinAge = 0
	_, err := logs.Round(ctx)
	return errors.Join(err, b.runtime.client.Reclaim(ctx))
}

// deadLeft reports whether any container is there that is kept only to be read.
func deadLeft(all []*board.Snapshot) bool {
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

// dropImages removes images that nobody needs until there is enough room.
func (b *berth) dropImages(ctx context.Context, enough func() bool) error {
	c, err := b.runtime.images.MakeRoom(ctx, b.imageGarbage(ctx), enough)
	b.imagesCollected(c, nil)
	return err
}

const measureBound = time.Minute // of all pods' disk; what is not counted by then counts as nothing

// measurePods measures what pods use of what a signal is about.
func (b *berth) measurePods(ctx context.Context, of pressure.Signal, pods []*board.Snapshot) []pressure.Candidate {
	out := make([]pressure.Candidate, 0, len(pods))
	use := b.use(of)
	for _, s := range pods {
		c := pressure.Candidate{Pod: plan.WithResources(s.Pod, s.Memory.Sizes.Allocated)}
		var err error
		if c.Use, err = use(ctx, s); err != nil {
			b.log.Warn("what a pod uses is not known", "pod", s.Pod.Namespace+"/"+s.Pod.Name, "err", err)
		}
		c.Known = err == nil
		out = append(out, c)
	}
	return out
}

// use measures one pod after the other.
func (b *berth) use(of pressure.Signal) func(context.Context, *board.Snapshot) (pressure.Use, error) {
	if of.Condition() != corev1.NodeDiskPressure {
		return b.useOfMemory
	}
	var layers map[string]cri.Layer
	until := time.Now().Add(measureBound)
	return func(ctx context.Context, s *board.Snapshot) (pressure.Use, error) {
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		if layers == nil {
			var err error
			if layers, err = b.runtime.client.Layers(ctx); err != nil {
				b.log.Warn("what containers have written is not known", "err", err)
				layers = map[string]cri.Layer{}
			}
		}
		u, err := b.useOfDisk(ctx, s, layers)
		if err != nil {
			b.log.Warn("not all of what a pod has on the disk is known", "pod", s.Pod.Namespace+"/"+s.Pod.Name, "err", err)
		}
		return u, nil
	}
}

func (b *berth) useOfMemory(ctx context.Context, s *board.Snapshot) (u pressure.Use, err error) {
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
	now := all[s.Pod.UID] // without a cgroup it uses nothing
	u.Memory, u.Tasks = int64(now.Pod.WorkingSet), int64(max(now.Pod.Tasks, now.Pod.Processes))
	for _, k := range s.Seen.Containers {
		if c, there := now.Containers[k.ID]; there {
			u.Containers = append(u.Containers, pressure.ContainerUse{Name: k.Name, Memory: int64(c.WorkingSet)})
		}
	}
	return u, nil
}

// diskOfPods measures what pods have on the disk. What their containers have written
// is asked of the runtime once, when the first of them is measured.
func (b *berth) diskOfPods() func(context.Context, *board.Snapshot) (pressure.Use, error) {
	var layers map[string]cri.Layer
	var unknown error
	return func(ctx context.Context, s *board.Snapshot) (pressure.Use, error) {
		if layers == nil && unknown == nil {
			layers, unknown = b.runtime.client.Layers(ctx)
		}
		u, err := b.useOfDisk(ctx, s, layers)
		return u, errors.Join(unknown, err)
	}
}

func (b *berth) useOfDisk(ctx context.Context, s *board.Snapshot, layers map[string]cri.Layer) (u pressure.Use, err error) {
	u.Volumes.Bytes, u.Volumes.Inodes, err = b.host.volumes.Taken(ctx, s.Pod)
	logs := map[string]bool{}
	for _, k := range s.Seen.Containers {
		l := layers[k.ID]
		u.Layers.Bytes, u.Layers.Inodes = u.Layers.Bytes+int64(l.Bytes), u.Layers.Inodes+int64(l.Inodes)
		c := pressure.ContainerUse{Name: k.Name, Disk: int64(l.Bytes), Layer: int64(l.Bytes)}
		if dir := filepath.Dir(k.LogPath); k.LogPath != "" && !logs[dir] { // of all instances in one folder
			logs[dir] = true
			bytes, files := logsOf(s, k.Name)
			u.Volumes.Bytes, u.Volumes.Inodes = u.Volumes.Bytes+int64(bytes), u.Volumes.Inodes+int64(files)
			c.Disk += int64(bytes)
		}
		u.Containers = append(u.Containers, c)
	}
	return u, err
}
