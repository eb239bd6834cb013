package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	idleInterval = 5 * time.Second
	idleBytes    = 1 << 20  // at most this much is allocated in an idle interval
	minTrimBytes = 16 << 20 // must be allocated since the last trim

	// A process with a large live heap allocates more when idle and pays more for a collection: a
	// server with many nodes always handles heartbeats.
	idleShare = 16 // or this share of the live heap

	// gcPercent starts a garbage collection when half of the live heap was allocated. The heap is
	// small enough for this to cost little.
	gcPercent = 50

	// gcRounds is the number of collections that shrink stacks: each halves the stacks that are
	// less than a quarter full. A sync pass leaves the goroutine of its pod with 32 KiB where 2 KiB
	// are enough for waiting.
	gcRounds = 3
)

// TrimMemory reduces the memory usage of this process until ctx ends. It lowers GOGC, unless the
// environment sets it, and returns memory to the operating system: once after ready is closed, and
// then whenever the process becomes idle after many allocations. A process that is never idle is
// never trimmed.
func TrimMemory(ctx context.Context, ready <-chan struct{}, failed func(error)) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	c := idleDetector{lastAllocated: sample[0].Value.Uint64()}
	tick := time.NewTicker(idleInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(sample)
		if !c.shouldTrim(sample[0].Value.Uint64(), sample[1].Value.Uint64()) {
			continue
		}
		for range gcRounds {
			runtime.GC()
		}
		debug.FreeOSMemory()
		if err := releaseReadOnlyPages(); err != nil {
			failed(err)
		}
	}
}

// idleDetector detects from the total allocations when the process is idle and has enough memory to
// return.
type idleDetector struct {
	lastAllocated   uint64 // total allocations one interval ago
	allocatedAtTrim uint64 // total allocations at the last trim; zero: never
}

// shouldTrim takes the total allocations and the live heap in bytes.
func (c *idleDetector) shouldTrim(now, live uint64) bool {
	quiet := now-c.lastAllocated <= max(idleBytes, live/idleShare)
	c.lastAllocated = now
	if !quiet || c.allocatedAtTrim != 0 && now-c.allocatedAtTrim < max(minTrimBytes, live) {
		return false
	}
	c.allocatedAtTrim = now
	return true
}

// releaseReadOnlyPages releases the pages of this program's code and constants, many of which only
// the start has used. The page cache provides them again when needed. Writable pages are not
// touched.
func releaseReadOnlyPages() error {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	for _, r := range readOnlyRanges(text, exe) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.from, r.to-r.from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise %x-%x: %w", r.from, r.to, errno)
		}
	}
	return nil
}

type addressRange struct{ from, to uintptr }

// readOnlyRanges returns the read-only mappings of a file in the content of /proc/self/maps.
func readOnlyRanges(maps []byte, file string) (out []addressRange) {
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[5] != file || len(f[1]) < 2 || f[1][1] == 'w' {
			continue
		}
		lo, hi, _ := strings.Cut(f[0], "-")
		from, err := strconv.ParseUint(lo, 16, 64)
		to, err2 := strconv.ParseUint(hi, 16, 64)
		if err == nil && err2 == nil && from < to {
			out = append(out, addressRange{uintptr(from), uintptr(to)})
		}
	}
	return out
}
