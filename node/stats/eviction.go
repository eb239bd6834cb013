package stats

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"berth/agent/eviction"
	"berth/agent/plan"
	"berth/agent/status"
	"berth/cri"
	"berth/node/pressure"
)

// Memory measures the memory and the processes of a pod.
func (sc *Collector) Memory(ctx context.Context, s *status.Snapshot) (u pressure.Usage, err error) {
	ids := map[types.UID][]string{s.Pod.UID: nil}
	for _, k := range s.Observed.Containers {
		if k.State == plan.Running {
			ids[s.Pod.UID] = append(ids[s.Pod.UID], k.ID)
		}
	}
	all, err := sc.Cgroups.Usage(ctx, ids)
	if err != nil {
		return u, err
	}
	now := all[s.Pod.UID] // a pod without a cgroup uses nothing
	u.Memory, u.Tasks = int64(now.Pod.WorkingSet), int64(max(now.Pod.Tasks, now.Pod.Processes))
	for _, k := range s.Observed.Containers {
		if c, there := now.Containers[k.ID]; there {
			u.Containers = append(u.Containers, pressure.ContainerUsage{Name: k.Name, Memory: int64(c.WorkingSet)})
		}
	}
	return u, nil
}

// Disk measures the disk usage of pods. The writable layers are queried from the runtime
// once, for the first pod.
func (sc *Collector) Disk(ctx context.Context) eviction.MeasureFunc {
	layers := sync.OnceValues(func() (map[string]cri.WritableLayer, error) {
		all, err := sc.Runtime.WritableLayers(ctx)
		if err != nil {
			err = fmt.Errorf("writable layers of containers: %w", err)
		}
		return all, err
	})
	return func(ctx context.Context, s *status.Snapshot) (pressure.Usage, error) {
		return sc.podDisk(ctx, s, layers)
	}
}

func (sc *Collector) podDisk(
	ctx context.Context,
	s *status.Snapshot,
	layers func() (map[string]cri.WritableLayer, error),
) (u pressure.Usage, err error) {
	u.Volumes.Bytes, u.Volumes.Inodes, err = sc.Volumes.DiskUsage(ctx, s.Pod)
	written, unknown := layers()
	logs := map[string]bool{}
	for _, k := range s.Observed.Containers {
		l := written[k.ID]
		u.Layers.Bytes, u.Layers.Inodes = u.Layers.Bytes+int64(l.Bytes), u.Layers.Inodes+int64(l.Inodes)
		c := pressure.ContainerUsage{Name: k.Name, Disk: int64(l.Bytes), Layer: int64(l.Bytes)}
		if dir := filepath.Dir(k.LogPath); k.LogPath != "" &&
			!logs[dir] { // one directory for all instances of a container
			logs[dir] = true
			bytes, files := logsOf(s, k.Name)
			u.Volumes.Bytes, u.Volumes.Inodes = u.Volumes.Bytes+int64(bytes), u.Volumes.Inodes+int64(files)
			c.Disk += int64(bytes)
		}
		u.Containers = append(u.Containers, c)
	}
	return u, errors.Join(err, unknown)
}
