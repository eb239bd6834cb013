package node

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/node/pressure"
)

// SignalSources lists the sources of the node's signals.
type SignalSources struct {
	Nodefs     string // path on the file system of volumes and logs
	Images     string // path on the file system of images; empty: unknown
	Containers string // path on the file system of writable layers; empty: that of images
	Pods       func() PodsMemory
}

// PodsMemory is the memory usage of all pods in bytes.
type PodsMemory struct {
	WorkingSet, NonReclaimable uint64  // NonReclaimable: without file pages
	Limit                      uint64  // 0: no limit
	StalledPercent             float64 // see pressure.MemoryEstimate
	HasPSI                     bool
}

// memoryPSI is the file with the memory pressure of the host.
const memoryPSI = "/proc/pressure/memory"

// ReadSignals reads the signals: a few files in /proc and one statfs for each file system.
// Unreadable signals are missing in the result, and the error contains the reasons.
func ReadSignals(now time.Time, p SignalSources) (pressure.Reading, error) {
	r := pressure.Reading{
		At:              now,
		Levels:          map[pressure.Signal]pressure.Level{},
		MemoryEstimates: map[pressure.Signal]pressure.MemoryEstimate{},
	}
	var errs []error
	if m, err := ReadMemory(); err != nil {
		errs = append(errs, err)
	} else if m.Total > 0 {
		r.Levels[pressure.MemoryAvailable] = level(m.Total-min(m.WorkingSet, m.Total), m.Total)
		second := pressure.MemoryEstimate{Name: "MemAvailable", Available: int64(m.Available)}
		if text, err := os.ReadFile(memoryPSI); err == nil {
			second.StalledPercent, second.HasPSI = psiFull10(string(text))
		}
		if m.Available > 0 {
			r.MemoryEstimates[pressure.MemoryAvailable] = second
		}
		if p.Pods != nil {
			readPods(&r, p.Pods(), m.Total)
		}
	}
	if now, most := Processes(); now > 0 && most > 0 {
		r.Levels[pressure.PIDAvailable] = pressure.Level{Available: max(most-now, 0), Capacity: most}
	}
	errs = append(errs, readDisks(&r, p))
	return r, errors.Join(errs...)
}

func readPods(r *pressure.Reading, p PodsMemory, total uint64) {
	limit := p.Limit
	if limit == 0 || limit > total {
		limit = total
	}
	r.Levels[pressure.AllocatableMemoryAvailable] = level(limit-min(p.WorkingSet, limit), limit)
	r.MemoryEstimates[pressure.AllocatableMemoryAvailable] = pressure.MemoryEstimate{
		Name:           "memory without file pages",
		Available:      int64(limit - min(p.NonReclaimable, limit)),
		HasPSI:         p.HasPSI,
		StalledPercent: p.StalledPercent,
	}
}

func readDisks(r *pressure.Reading, p SignalSources) error {
	if p.Containers == "" {
		p.Containers = p.Images
	}
	var errs []error
	for _, d := range []struct {
		path          string
		bytes, inodes pressure.Signal
	}{
		{p.Nodefs, pressure.NodefsAvailable, pressure.NodefsInodesFree},
		{p.Images, pressure.ImagefsAvailable, pressure.ImagefsInodesFree},
		{p.Containers, pressure.ContainerfsAvailable, pressure.ContainerfsInodesFree},
	} {
		if d.path == "" {
			continue
		}
		disk, err := ReadDisk(d.path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.Levels[d.bytes] = level(disk.Available, disk.Capacity)
		if disk.Inodes > 0 { // otherwise the file system allocates inodes dynamically
			r.Levels[d.inodes] = level(disk.InodesFree, disk.Inodes)
		}
	}
	r.Layout.DedicatedImageFs = p.Images != "" && !SameFileSystem(p.Nodefs, p.Images)
	r.Layout.SplitContainerFs = p.Containers != "" && !SameFileSystem(p.Images, p.Containers)
	r.Layout.ContainersOnNodefs = r.Layout.SplitContainerFs && SameFileSystem(p.Nodefs, p.Containers)
	return errors.Join(errs...)
}

// readImageLevels returns the levels of the eviction signals that an image pull affects, and the free
// bytes of the image file system. imagesDir is a directory on the image file system, rootDir one on
// nodefs, whose levels are included if both are on the same file system.
func readImageLevels(rootDir, imagesDir string) (levels map[pressure.Signal]pressure.Level, free uint64, err error) {
	disk, err := ReadDisk(imagesDir)
	if err != nil {
		return nil, 0, err
	}
	bytes := pressure.Level{Available: int64(disk.Available), Capacity: int64(disk.Capacity)}
	inodes := pressure.Level{Available: int64(disk.InodesFree), Capacity: int64(disk.Inodes)}
	nodefs := SameFileSystem(rootDir, imagesDir)
	levels = map[pressure.Signal]pressure.Level{pressure.ImagefsAvailable: bytes}
	if nodefs {
		levels[pressure.NodefsAvailable] = bytes
	}
	if disk.Inodes > 0 {
		levels[pressure.ImagefsInodesFree] = inodes
		if nodefs {
			levels[pressure.NodefsInodesFree] = inodes
		}
	}
	return levels, disk.Available, nil
}

func level(available, capacity uint64) pressure.Level {
	return pressure.Level{Available: int64(available), Capacity: int64(capacity)}
}

// SameFileSystem reports whether two paths are on the same file system. It returns true if either
// path cannot be read.
func SameFileSystem(a, b string) bool {
	var x, y unix.Stat_t
	if unix.Stat(a, &x) != nil || unix.Stat(b, &y) != nil {
		return true
	}
	return x.Dev == y.Dev
}

// CPUPressure returns the percentage of the last 10 s in which some task waited for a CPU. known is
// false if the kernel does not report it.
func CPUPressure() (percent float64, known bool) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, false
	}
	return psiAvg10(string(text), "some")
}

// psiFull10 returns the percentage of the last 10 s in which all tasks waited.
func psiFull10(text string) (percent float64, ok bool) { return psiAvg10(text, "full") }

// psiAvg10 returns avg10 of the line "some" or "full".
func psiAvg10(text, kind string) (percent float64, ok bool) {
	for line := range strings.Lines(text) {
		rest, full := strings.CutPrefix(line, kind+" avg10=")
		if !full {
			continue
		}
		word, _, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseFloat(word, 64)
		return n, err == nil
	}
	return 0, false
}
