package node

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"berth/node/pressure"
)

// FileSystems finds the file systems of the eviction signals. It asks the runtime periodically for
// those that the runtime uses. PullBudget is safe for concurrent use; one goroutine uses the rest.
type FileSystems struct {
	RootDir string // on nodefs
	// Runtime returns a directory on the runtime's image file system and one on that of writable
	// layers. The second one is empty if the runtime does not report it.
	Runtime func(context.Context) (images, containers string, err error)
	Pods    func() PodsMemory
	Log     *slog.Logger

	images      atomic.Pointer[string] // nil: unknown
	containers  string
	refreshedAt time.Time
}

// fileSystemsMaxAge is the time between two queries of the runtime.
const fileSystemsMaxAge = 5 * time.Minute

// ReadSignals reads the signals of the node.
func (f *FileSystems) ReadSignals(ctx context.Context) (pressure.Reading, error) {
	f.refresh(ctx)
	return ReadSignals(time.Now(), f.sources())
}

// refresh queries the runtime if the last result is too old.
func (f *FileSystems) refresh(ctx context.Context) {
	if f.Images() != "" && time.Since(f.refreshedAt) <= fileSystemsMaxAge {
		return
	}
	if images, containers, err := f.Runtime(ctx); err == nil {
		f.images.Store(&images)
		f.containers, f.refreshedAt = containers, time.Now()
	}
}

func (f *FileSystems) sources() SignalSources {
	return SignalSources{Nodefs: f.RootDir, Images: f.Images(), Containers: f.containers, Pods: f.Pods}
}

// Images returns a directory on the image file system; empty: unknown.
func (f *FileSystems) Images() string {
	if dir := f.images.Load(); dir != nil {
		return *dir
	}
	return ""
}

// Containers returns a directory on the file system of the writable layers; empty: unknown.
func (f *FileSystems) Containers() string { return cmp.Or(f.containers, f.Images()) }

// pathOf returns the directory of a signal; empty: not a disk signal, or unknown.
func (f *FileSystems) pathOf(s pressure.Signal) string {
	switch s {
	case pressure.NodefsAvailable, pressure.NodefsInodesFree:
		return f.RootDir
	case pressure.ImagefsAvailable, pressure.ImagefsInodesFree:
		return f.Images()
	case pressure.ContainerfsAvailable, pressure.ContainerfsInodesFree:
		return f.Containers()
	case pressure.MemoryAvailable, pressure.AllocatableMemoryAvailable, pressure.PIDAvailable:
	}
	return ""
}

// Covers returns a function that reports whether any of the directories is on the file system of a
// signal. Empty directories are unknown.
func (f *FileSystems) Covers(dirs ...func() string) func(pressure.Signal) bool {
	return func(s pressure.Signal) bool {
		path := f.pathOf(s)
		return slices.ContainsFunc(dirs, func(dir func() string) bool {
			d := dir()
			return path != "" && d != "" && SameFileSystem(path, d)
		})
	}
}

// PullBudget is the disk space that image pulls may use.
type PullBudget struct {
	Free     uint64 // bytes of the image file system
	Reserved uint64 // part of Free that no pull may use
	Pressure string // why no pull may start; empty: pulls may start
}

// PullBudget returns the disk space for image pulls under the eviction thresholds. It returns false
// if the image file system is unknown or unreadable.
func (f *FileSystems) PullBudget(c pressure.Config) (PullBudget, bool) {
	dir := f.Images()
	if dir == "" {
		return PullBudget{}, false
	}
	levels, free, err := readImageLevels(f.RootDir, dir)
	if err != nil {
		f.Log.Debug("image filesystem unavailable", "err", err)
		return PullBudget{}, false
	}
	reserved, low := c.PullBudget(levels)
	b := PullBudget{Free: free, Reserved: uint64(reserved)}
	if low != nil {
		b.Pressure = low.String()
	}
	return b, true
}
