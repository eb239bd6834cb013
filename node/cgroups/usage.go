package cgroups

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Usage is what one cgroup has used, with all below it. What the kernel does
// not tell is zero.
type Usage struct {
	At            time.Time     // when it was read
	CPU           time.Duration // of all CPUs together, since the cgroup was made
	Memory        uint64        // bytes, the page cache included
	WorkingSet    uint64        // bytes: Memory without file pages that nobody used lately
	ReadBytes     uint64        // from block devices, since the cgroup was made
	WriteBytes    uint64
	IOUnavailable bool // the kernel does not count what is read and written
	Processes     int
	Tasks         int       // processes and their threads: what a limit of PIDs counts
	Pressure      *Pressure // nil: this kernel or hierarchy has no pressure figures
}

// Pressure is the share of the last ten seconds in which some task of the cgroup
// waited for a resource, in percent.
type Pressure struct{ CPU, Memory, IO float64 }

// Measured is what was read of a pod and of each of its containers.
type Measured[T any] struct {
	Pod        T            // its sandbox included
	Containers map[string]T // by container ID; without those that have no cgroup (any more)
}

// PodUsage is what a pod has used and what each of its containers has.
type PodUsage = Measured[Usage]

// Usage reads what pods have used, each with the containers of the given IDs. It
// reads files only. A pod without a cgroup is left out.
func (c *Cgroups) Usage(ctx context.Context, pods map[types.UID][]string) (map[types.UID]PodUsage, error) {
	return measure(ctx, c, pods, c.read)
}

// measure reads the cgroups of pods and of their containers.
func measure[T any](ctx context.Context, c *Cgroups, pods map[types.UID][]string, read func(dir string) T) (map[types.UID]Measured[T], error) {
	out := make(map[types.UID]Measured[T], len(pods))
	for uid, ids := range pods {
		pod := &corev1.Pod{}
		pod.UID = uid
		if err := check(ctx, pod); err != nil {
			return nil, failed("", err)
		}
		dir, found := c.podDir(uid)
		if !found {
			continue
		}
		m := Measured[T]{Pod: read(dir), Containers: make(map[string]T, len(ids))}
		for _, id := range ids {
			if below, ok := c.containerDir(dir, id); ok {
				m.Containers[id] = read(below)
			}
		}
		out[uid] = m
	}
	return out, nil
}

// UsageRate is the usage per second between two readings of one cgroup: CPU is the
// number of CPUs that were busy. Of one that was not there at first nothing is known.
func UsageRate(was, now Usage) (cpu, readBytes, writeBytes float64) {
	seconds := now.At.Sub(was.At).Seconds()
	if was.At.IsZero() || seconds <= 0 { // it was not there yet
		return 0, 0, 0
	}
	rate := func(was, now float64) float64 { return max(now-was, 0) / seconds }
	return rate(was.CPU.Seconds(), now.CPU.Seconds()),
		rate(float64(was.ReadBytes), float64(now.ReadBytes)), rate(float64(was.WriteBytes), float64(now.WriteBytes))
}

// podDir is the pod's directory below the mount points, in whichever tier it is.
func (c *Cgroups) podDir(uid types.UID) (string, bool) {
	for _, tier := range tiers() {
		dir := c.layout.dir(c.layout.pod(tier, uid))
		for _, h := range c.hierarchies {
			if exists(filepath.Join(h.mount, dir)) {
				return dir, true
			}
		}
	}
	return "", false
}

// containerDir finds the directory that the runtime made for a container in the
// pod's: the ID by itself or, with systemd, a scope.
func (c *Cgroups) containerDir(pod, id string) (string, bool) {
	if !plainName(id) {
		return "", false
	}
	for _, name := range []string{id, "cri-containerd-" + id + ".scope", "crio-" + id + ".scope"} {
		dir := filepath.Join(pod, name)
		for _, h := range c.hierarchies {
			if exists(filepath.Join(h.mount, dir)) {
				return dir, true
			}
		}
	}
	return "", false
}

// read reads one cgroup from the hierarchies that have it.
func (c *Cgroups) read(dir string) Usage {
	u := Usage{At: time.Now(), IOUnavailable: true}
	for _, h := range c.hierarchies {
		at := filepath.Join(h.mount, dir)
		if !exists(at) {
			continue
		}
		if h.unified {
			u.unified(at, c.v2)
		} else {
			u.v1(h, at)
		}
		// The main processes are in every hierarchy, but a runtime need not join all.
		if groups, err := (group{dir: at}).dirs(); err == nil {
			n := 0
			for _, d := range groups {
				n += len(fields(filepath.Join(d, "cgroup.procs")))
			}
			u.Processes = max(u.Processes, n)
		}
		u.Tasks = max(u.Tasks, int(number(at, "pids.current")))
	}
	return u
}

// unified reads cgroup v2; of a hybrid host only the pressure is there.
func (u *Usage) unified(dir string, whole bool) {
	cpu, okCPU := pressure(dir, "cpu")
	memory, okMemory := pressure(dir, "memory")
	io, okIO := pressure(dir, "io")
	if okCPU || okMemory || okIO {
		u.Pressure = &Pressure{CPU: cpu, Memory: memory, IO: io}
	}
	if !whole {
		return
	}
	u.CPU = time.Duration(keyed(dir, "cpu.stat", "usage_usec")) * time.Microsecond
	u.memory(number(dir, "memory.current"), keyed(dir, "memory.stat", "inactive_file"))
	text, err := os.ReadFile(filepath.Join(dir, "io.stat"))
	u.IOUnavailable = err != nil
	for word := range strings.FieldsSeq(string(text)) { // 8:0 rbytes=1 wbytes=2 …
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case err != nil:
		case key == "rbytes":
			u.ReadBytes += n
		case key == "wbytes":
			u.WriteBytes += n
		}
	}
}

// v1 reads what one hierarchy of cgroup v1 tells.
func (u *Usage) v1(h hierarchy, dir string) {
	if h.has("cpuacct") {
		u.CPU = time.Duration(number(dir, "cpuacct.usage"))
	}
	if h.has("memory") {
		u.memory(number(dir, "memory.usage_in_bytes"), keyed(dir, "memory.stat", "total_inactive_file"))
	}
	if !h.has("blkio") {
		return
	}
	text, err := throttled(dir)
	u.IOUnavailable = err != nil || countsNothing(h.mount)
	for line := range strings.Lines(string(text)) { // 8:0 Read 4096
		words := strings.Fields(line)
		if len(words) != 3 {
			continue
		}
		n, err := strconv.ParseUint(words[2], 10, 64)
		switch {
		case err != nil:
		case words[1] == "Read":
			u.ReadBytes += n
		case words[1] == "Write":
			u.WriteBytes += n
		}
	}
}

// throttled is what v1 counted of a cgroup's I/O.
func throttled(dir string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, "blkio.throttle.io_service_bytes_recursive"))
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(filepath.Join(dir, "blkio.throttle.io_service_bytes"))
	}
	return text, err //nolint:wrapcheck // only whether there is one matters
}

// countsNothing reports whether the kernel keeps no count at all: that of the whole
// host, which has read what it runs, then names no device. Newer kernels count on v1
// only for devices that have a limit.
func countsNothing(root string) bool {
	text, err := throttled(root)
	return err == nil && !bytes.Contains(text, []byte(":"))
}

func (u *Usage) memory(used, inactive uint64) {
	u.Memory, u.WorkingSet = used, used-min(inactive, used)
}

// memoryLimit is what a cgroup may use of memory, in bytes; 0: any amount.
func (c *Cgroups) memoryLimit(dir string) uint64 {
	for _, h := range c.hierarchies {
		at := filepath.Join(h.mount, dir)
		switch {
		case h.unified && c.v2:
			return number(at, "memory.max") // "max" is no number
		case !h.unified && h.has("memory"):
			return number(at, "memory.limit_in_bytes")
		}
	}
	return 0
}

// number reads a file of one number; 0 where there is none.
func number(dir, file string) uint64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// keyed reads the number of one key; 0 where there is none.
func keyed(dir, file, key string) uint64 {
	n, err := counter(filepath.Join(dir, file), key)
	if err != nil {
		return 0
	}
	return n
}

// pressure reads "some avg10=1.23 …".
func pressure(dir, of string) (float64, bool) {
	text, err := os.ReadFile(filepath.Join(dir, of+".pressure"))
	if err != nil {
		return 0, false
	}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		rest, ok := strings.CutPrefix(sc.Text(), "some avg10=")
		if !ok {
			continue
		}
		value, _, _ := strings.Cut(rest, " ")
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}

// UsageOver reads usage two times, the window apart.
func (c *Cgroups) UsageOver(ctx context.Context, pods map[types.UID][]string, window time.Duration) (before, after map[types.UID]PodUsage, err error) {
	if before, err = c.Usage(ctx, pods); err != nil {
		return nil, nil, err
	}
	wait := time.NewTimer(window)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return nil, nil, failed("", ctx.Err())
	case <-wait.C:
	}
	after, err = c.Usage(ctx, pods)
	return before, after, err
}
