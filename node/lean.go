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
	calmEvery  = 5 * time.Second
	calmBytes  = 1 << 20  // allocated within calmEvery at most: nothing goes on
	worthBytes = 16 << 20 // allocated since memory was last given back: much of it lies about

	// Who keeps much is at rest with more going on, and pays more for each look at all
	// that it keeps: a server whose nodes all tell that they live is never still.
	calmPart = 16 // or this part of what is kept

	// leanPercent has garbage collected when half as much was allocated as is in
	// use. So little is in use that this costs next to nothing.
	leanPercent = 50

	// stackHalvings is how often garbage is collected for the stacks' sake: each time
	// one that is used to less than a quarter is halved, and a decision about a pod
	// leaves its goroutine with 32 KiB where it waits in 2.
	stackHalvings = 3
)

// TrimMemory has this program take little memory, and gives back to the host what
// only a start or many pods at once have needed: once when the work of the start
// is over, which ready tells, and each time calm returns after much was allocated. A node that never
// rests never pays for the latter. GOGC in the environment wins over the former.
// It ends with ctx.
func TrimMemory(ctx context.Context, ready <-chan struct{}, failed func(error)) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(leanPercent)
	}
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	c := calm{before: sample[0].Value.Uint64()}
	tick := time.NewTicker(calmEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(sample)
		if !c.returned(sample[0].Value.Uint64(), sample[1].Value.Uint64()) {
			continue
		}
		for range stackHalvings {
			runtime.GC()
		}
		debug.FreeOSMemory()
		if err := shedStartPages(); err != nil {
			failed(err)
		}
	}
}

// calm tells from what was allocated in all when there is nothing to do and much
// to give back.
type calm struct {
	before uint64 // allocated until calmEvery ago
	given  uint64 // allocated until memory was last given back; zero: it never was
}

// returned takes what was allocated until now and what of it is kept, in bytes.
func (c *calm) returned(now, kept uint64) bool {
	quiet := now-c.before <= max(calmBytes, kept/calmPart)
	c.before = now
	if !quiet || c.given != 0 && now-c.given < max(worthBytes, kept) {
		return false
	}
	c.given = now
	return true
}

// shedStartPages gives back the memory of this program's own code and constants
// that only its start has used. What is needed again comes back from the page
// cache, one fault each. Writable memory is never touched.
func shedStartPages() error {
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
			return fmt.Errorf("give back %x-%x: %w", r.from, r.to, errno)
		}
	}
	return nil
}

type addressRange struct{ from, to uintptr }

// readOnlyRanges finds the mappings of a file that can not be written to in the
// text of /proc/self/maps.
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
