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

// SignalSources say where the node's signals are read.
type SignalSources struct {
	Nodefs     string // a path on the file system of pods' volumes
	Images     string // one on that of images; empty: not known
	Containers string // one on that of what containers write; empty: that of images
	Pods       func() PodsMemory
}

// PodsMemory is what all pods together use of memory, in bytes.
type PodsMemory struct {
	WorkingSet, NonReclaimable uint64  // NonReclaimable: less all pages that files can be read back into
	Limit                      uint64  // 0: as much as there is
	StalledPercent             float64 // percent, see pressure.Second
	HasPSI                     bool
}

// memoryStalls is where the kernel tells how much tasks wait for memory.
const memoryStalls = "/proc/pressure/memory"

// ReadSignals looks at the node: a few files of /proc and one statfs per file
// system. What could not be read is absent, and the error says why.
func ReadSignals(now time.Time, p SignalSources) (pressure.Reading, error) {
	r := pressure.Reading{At: now, Levels: map[pressure.Signal]pressure.Level{}, MemoryEstimates: map[pressure.Signal]pressure.MemoryEstimate{}}
	var errs []error
	if m, err := ReadMemory(); err != nil {
		errs = append(errs, err)
	} else if m.Total > 0 {
		r.Levels[pressure.MemoryAvailable] = level(m.Total-min(m.WorkingSet, m.Total), m.Total)
		second := pressure.MemoryEstimate{Name: "MemAvailable", Available: int64(m.Available)}
		if text, err := os.ReadFile(memoryStalls); err == nil {
			second.StalledPercent, second.HasPSI = stalled(string(text))
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
		Name: "what is left beside files' pages", Available: int64(limit - min(p.NonReclaimable, limit)), HasPSI: p.HasPSI, StalledPercent: p.StalledPercent,
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
		if disk.Inodes > 0 { // else the file system makes them as they are needed
			r.Levels[d.inodes] = level(disk.InodesFree, disk.Inodes)
		}
	}
	r.Layout.DedicatedImageFs = p.Images != "" && !SameFileSystem(p.Nodefs, p.Images)
	r.Layout.SplitContainerFs = p.Containers != "" && !SameFileSystem(p.Images, p.Containers)
	r.Layout.ContainersOnNodefs = r.Layout.SplitContainerFs && SameFileSystem(p.Nodefs, p.Containers)
	return errors.Join(errs...)
}

func level(available, capacity uint64) pressure.Level {
	return pressure.Level{Available: int64(available), Capacity: int64(capacity)}
}

// SameFileSystem reports whether two paths lie on one file system; true where one of
// them cannot be asked.
func SameFileSystem(a, b string) bool {
	var x, y unix.Stat_t
	if unix.Stat(a, &x) != nil || unix.Stat(b, &y) != nil {
		return true
	}
	return x.Dev == y.Dev
}

// CPUPressure is the share of the last 10 s in which some task waited for a CPU, in
// percent; not known where the kernel does not tell.
func CPUPressure() (percent float64, known bool) {
	text, err := os.ReadFile("/proc/pressure/cpu")
	if err != nil {
		return 0, false
	}
	return tenSeconds(string(text), "some")
}

// stalled finds the share of the last 10 s in which all tasks waited, in percent.
func stalled(text string) (percent float64, ok bool) { return tenSeconds(text, "full") }

// tenSeconds finds the share of the last 10 s in which some or all (full) tasks waited.
func tenSeconds(text, who string) (percent float64, ok bool) {
	for line := range strings.Lines(text) {
		rest, full := strings.CutPrefix(line, who+" avg10=")
		if !full {
			continue
		}
		word, _, _ := strings.Cut(rest, " ")
		n, err := strconv.ParseFloat(word, 64)
		return n, err == nil
	}
	return 0, false
}
