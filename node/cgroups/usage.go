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

// Usage is the resource usage of a cgroup and its descendants. Missing values are zero.
type Usage struct {
	At            time.Time     // time of the reading
	CPU           time.Duration // since the cgroup was created
	Memory        uint64        // bytes, including page cache
	WorkingSet    uint64        // bytes, without inactive file pages
	ReadBytes     uint64        // block devices, since the cgroup was created
	WriteBytes    uint64
	IOUnavailable bool // the kernel does not account I/O
	Processes     int
	Tasks         int       // processes and threads, as limited by PIDs
	Pressure      *Pressure // nil: not supported by this kernel or hierarchy
}

// Pressure is the percentage of the last 10 s in which some task of the cgroup waited for a
// resource.
type Pressure struct{ CPU, Memory, IO float64 }

// Measured contains the readings of a pod and its containers.
type Measured[T any] struct {
	Pod        T            // including the sandbox
	Containers map[string]T // by container ID; only those with a cgroup
}

// PodUsage is the usage of a pod and its containers.
type PodUsage = Measured[Usage]

// Usage reads the usage of pods and of the containers with the given IDs from cgroup files. Pods
// without a cgroup are omitted.
func (c *Cgroups) Usage(ctx context.Context, pods map[types.UID][]string) (map[types.UID]PodUsage, error) {
	return readPods(ctx, c, pods, c.read)
}

// readPods reads the cgroups of pods and their containers.
func readPods[T any](
	ctx context.Context,
	c *Cgroups,
	pods map[types.UID][]string,
	read func(dir string) T,
) (map[types.UID]Measured[T], error) {
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

// UsageRate returns the usage per second between two readings of a cgroup: CPU is the number of
// busy CPUs. It returns zero if there is no first reading.
func UsageRate(was, now Usage) (cpu, readBytes, writeBytes float64) {
	seconds := now.At.Sub(was.At).Seconds()
	if was.At.IsZero() || seconds <= 0 { // no first reading
		return 0, 0, 0
	}
	rate := func(was, now float64) float64 { return max(now-was, 0) / seconds }
	return rate(was.CPU.Seconds(), now.CPU.Seconds()),
		rate(float64(was.ReadBytes), float64(now.ReadBytes)), rate(float64(was.WriteBytes), float64(now.WriteBytes))
}

// podDir returns the pod's directory below the mount points, in any tier.
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

// containerDir finds the directory of a container below that of its pod: the ID, or with systemd a
// scope.
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

// read reads a cgroup in all hierarchies that have it.
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
		// A runtime may not join all hierarchies.
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

// unified reads cgroup v2. On a hybrid host only the pressure is available.
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

// v1 reads one hierarchy of cgroup v1.
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
	u.IOUnavailable = err != nil || ioNotCounted(h.mount)
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

// throttled returns the I/O accounting of v1.
func throttled(dir string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(dir, "blkio.throttle.io_service_bytes_recursive"))
	if errors.Is(err, os.ErrNotExist) {
		text, err = os.ReadFile(filepath.Join(dir, "blkio.throttle.io_service_bytes"))
	}
	return text, err //nolint:wrapcheck // callers only check for nil
}

// ioNotCounted reports whether the kernel accounts no I/O at all: the file of the root then names
// no device, although the host has read its programs. Newer kernels account on v1 only for devices
// with a limit.
func ioNotCounted(root string) bool {
	text, err := throttled(root)
	return err == nil && !bytes.Contains(text, []byte(":"))
}

func (u *Usage) memory(used, inactive uint64) {
	u.Memory, u.WorkingSet = used, used-min(inactive, used)
}

// memoryLimit returns the memory limit of a cgroup in bytes. 0: unlimited.
func (c *Cgroups) memoryLimit(dir string) uint64 {
	for _, h := range c.hierarchies {
		at := filepath.Join(h.mount, dir)
		switch {
		case h.unified && c.v2:
			return number(at, "memory.max") // "max" is read as 0
		case !h.unified && h.has("memory"):
			return number(at, "memory.limit_in_bytes")
		}
	}
	return 0
}

// number reads a file with one number. It returns 0 on errors.
func number(dir, file string) uint64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// keyed reads the value of a key. It returns 0 on errors.
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

// UsageOver reads the usage before and after the window.
func (c *Cgroups) UsageOver(
	ctx context.Context,
	pods map[types.UID][]string,
	window time.Duration,
) (before, after map[types.UID]PodUsage, err error) {
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

// PodsMemory is the memory usage of all pods together in bytes.
type PodsMemory struct {
	WorkingSet     uint64    // without inactive file pages
	NonReclaimable uint64    // without file pages
	Limit          uint64    // 0: unlimited
	PSI            *PSIStats // memory pressure; nil: not supported by this kernel or hierarchy
}

// PodsMemory reads the cgroup of all pods. The result is zero if it does not exist.
func (c *Cgroups) PodsMemory() (t PodsMemory) {
	dir := c.layout.dir(c.layout.tier(""))
	for _, h := range c.hierarchies {
		at := filepath.Join(h.mount, dir)
		switch {
		case !exists(at):
		case h.unified:
			if s := readPSI(at); s != nil {
				t.PSI = &s.Memory
			}
			if c.v2 {
				t.set(number(at, "memory.current"), table(at, "memory.stat"), "")
			}
		case h.has("memory"):
			t.set(number(at, "memory.usage_in_bytes"), table(at, "memory.stat"), "total_")
		}
	}
	if t.Limit = c.memoryLimit(dir); t.Limit >= 1<<62 {
		t.Limit = 0 // unlimited
	}
	return t
}

func (t *PodsMemory) set(used uint64, stat map[string]uint64, prefix string) {
	inactive, active := stat[prefix+"inactive_file"], stat[prefix+"active_file"]
	t.WorkingSet = used - min(inactive, used)
	t.NonReclaimable = used - min(inactive+active, used)
}
