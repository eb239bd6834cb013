package cgroups

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Detail is all that the kernel tells of a cgroup, with all below it. What it
// does not tell is zero.
type Detail struct {
	Usage
	Path          string        // from the hierarchy's root, as /kubepods/burstable/pod…
	User, System  time.Duration // of CPU
	Periods       uint64        // of the CPU limit
	Throttled     uint64        // of them, in which it had to wait
	ThrottledTime time.Duration

	RSS, Cache, Mapped, Peak, Swap uint64 // bytes
	Faults, MajorFaults, OOMKills  uint64

	Devices []Device
	Threads int
	PID     int // one of its own or of those below; 0: none

	Quota, Period time.Duration // the CPU limit; Quota 0: none
	Shares        uint64        // CPU weight in v1's measure
	MemoryLimit   uint64        // bytes; 0: none
	PSI           *PSI          // nil: this kernel or hierarchy has no pressure figures
}

// Device is what went to and from a block device.
type Device struct {
	Name                                     string // as /dev/sda
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
}

// PSI is how much tasks waited for each resource.
type PSI struct{ CPU, Memory, IO PSIStats }

// PSIStats is how much some and all tasks waited.
type PSIStats struct{ Some, Full PSIData }

// PSIData is a share of the last 10, 60 and 300 seconds in percent, and the
// time since the cgroup was made.
type PSIData struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// PodDetail is what the kernel tells of a pod and of each of its containers.
type PodDetail = Measured[Detail]

// Details is Usage in full.
func (c *Cgroups) Details(ctx context.Context, pods map[types.UID][]string) (map[types.UID]PodDetail, error) {
	return measure(ctx, c, pods, c.detail)
}

// RootDetail is what all cgroups together have used: the hierarchy's root. On cgroup
// v2 that has no memory figures.
func (c *Cgroups) RootDetail() Detail {
	d := Detail{Path: "/"}
	d.At = time.Now()
	for _, h := range c.hierarchies {
		if h.unified {
			d.v2(h.mount, c.v2)
		} else {
			d.v1(h, h.mount)
		}
	}
	return d
}

func (c *Cgroups) detail(dir string) Detail {
	d := Detail{Path: "/" + dir, Usage: Usage{At: time.Now()}}
	for _, h := range c.hierarchies {
		at := filepath.Join(h.mount, dir)
		if !exists(at) {
			continue
		}
		threads := "tasks"
		if h.unified {
			d.v2(at, c.v2)
			threads = "cgroup.threads"
		} else {
			d.v1(h, at)
		}
		d.count(at, threads)
	}
	return d
}

// count counts the processes: the main ones are in every hierarchy, but a runtime
// need not join all.
func (d *Detail) count(dir, threads string) {
	groups, err := (group{dir: dir}).dirs()
	if err != nil {
		return
	}
	processes, tasks := 0, 0
	for _, g := range groups {
		all := fields(filepath.Join(g, "cgroup.procs"))
		processes += len(all)
		tasks += len(fields(filepath.Join(g, threads)))
		if d.PID == 0 && len(all) > 0 {
			d.PID, _ = strconv.Atoi(all[0])
		}
	}
	d.Processes, d.Threads = max(d.Processes, processes), max(d.Threads, tasks)
}

// v2 reads cgroup v2; of a hybrid host only the pressure is there.
func (d *Detail) v2(dir string, whole bool) {
	if s := stallsOf(dir); s != nil {
		d.PSI = s
		d.Pressure = &Pressure{CPU: s.CPU.Some.Avg10, Memory: s.Memory.Some.Avg10, IO: s.IO.Some.Avg10}
	}
	if !whole {
		return
	}
	cpu := table(dir, "cpu.stat")
	d.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	d.User, d.System = time.Duration(cpu["user_usec"])*time.Microsecond, time.Duration(cpu["system_usec"])*time.Microsecond
	d.Periods, d.Throttled = cpu["nr_periods"], cpu["nr_throttled"]
	d.ThrottledTime = time.Duration(cpu["throttled_usec"]) * time.Microsecond
	memory := table(dir, "memory.stat")
	d.memory(number(dir, "memory.current"), memory["inactive_file"])
	d.RSS, d.Cache, d.Mapped = memory["anon"], memory["file"], memory["file_mapped"]
	d.Faults, d.MajorFaults = memory["pgfault"], memory["pgmajfault"]
	d.Peak, d.Swap = number(dir, "memory.peak"), number(dir, "memory.swap.current")
	d.OOMKills = table(dir, "memory.events")["oom_kill"]
	d.MemoryLimit = number(dir, "memory.max") // "max" is no number
	if quota := fields(filepath.Join(dir, "cpu.max")); len(quota) == 2 {
		d.Quota, d.Period = micros(quota[0]), micros(quota[1])
	}
	if weight := number(dir, "cpu.weight"); weight > 0 {
		d.Shares = 2 + (weight-1)*262142/9999 // the way back of weightOf
	}
	text, _ := os.ReadFile(filepath.Join(dir, "io.stat"))
	for line := range strings.Lines(string(text)) { // 8:0 rbytes=1 wbytes=2 rios=3 wios=4 …
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		dev := d.device(words[0])
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			dev.add(key, value)
		}
	}
	d.sum()
}

// v1 reads what one hierarchy of cgroup v1 tells.
func (d *Detail) v1(h hierarchy, dir string) {
	if h.has("cpuacct") {
		d.CPU = time.Duration(number(dir, "cpuacct.usage"))
		parts := table(dir, "cpuacct.stat") // in ticks of 10 ms
		d.User, d.System = time.Duration(parts["user"])*10*time.Millisecond, time.Duration(parts["system"])*10*time.Millisecond
	}
	if h.has("cpu") {
		cpu := table(dir, "cpu.stat")
		d.Periods, d.Throttled, d.ThrottledTime = cpu["nr_periods"], cpu["nr_throttled"], time.Duration(cpu["throttled_time"])
		d.Shares = number(dir, "cpu.shares")
		if quota := fields(filepath.Join(dir, "cpu.cfs_quota_us")); len(quota) == 1 { // -1: none
			d.Quota, d.Period = micros(quota[0]), time.Duration(number(dir, "cpu.cfs_period_us"))*time.Microsecond
		}
	}
	if h.has("memory") {
		memory := table(dir, "memory.stat")
		d.memory(number(dir, "memory.usage_in_bytes"), memory["total_inactive_file"])
		d.RSS, d.Cache, d.Mapped = memory["total_rss"], memory["total_cache"], memory["total_mapped_file"]
		d.Swap, d.Faults, d.MajorFaults = memory["total_swap"], memory["total_pgfault"], memory["total_pgmajfault"]
		d.Peak, d.OOMKills = number(dir, "memory.max_usage_in_bytes"), table(dir, "memory.oom_control")["oom_kill"]
		if d.MemoryLimit = number(dir, "memory.limit_in_bytes"); d.MemoryLimit >= 1<<62 {
			d.MemoryLimit = 0 // as much as there can be
		}
	}
	if h.has("blkio") {
		d.blkio(dir, "io_service_bytes", "rbytes", "wbytes")
		d.blkio(dir, "io_serviced", "rios", "wios")
		d.sum()
	}
}

// blkio reads lines as "8:0 Read 4096".
func (d *Detail) blkio(dir, file, read, write string) {
	text, err := os.ReadFile(filepath.Join(dir, "blkio.throttle."+file+"_recursive"))
	if errors.Is(err, os.ErrNotExist) {
		text, _ = os.ReadFile(filepath.Join(dir, "blkio.throttle."+file))
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) != 3:
		case words[1] == "Read":
			d.device(words[0]).add(read, words[2])
		case words[1] == "Write":
			d.device(words[0]).add(write, words[2])
		}
	}
}

// device finds or adds a device, by its numbers until it has its name.
func (d *Detail) device(numbers string) *Device {
	name := numbers
	if link, err := os.Readlink("/sys/dev/block/" + numbers); err == nil {
		name = "/dev/" + filepath.Base(link)
	}
	for i := range d.Devices {
		if d.Devices[i].Name == name {
			return &d.Devices[i]
		}
	}
	d.Devices = append(d.Devices, Device{Name: name})
	return &d.Devices[len(d.Devices)-1]
}

func (d *Device) add(key, value string) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return
	}
	switch key {
	case "rbytes":
		d.ReadBytes += n
	case "wbytes":
		d.WriteBytes += n
	case "rios":
		d.ReadOps += n
	case "wios":
		d.WriteOps += n
	}
}

func (d *Detail) sum() {
	d.ReadBytes, d.WriteBytes = 0, 0
	for _, dev := range d.Devices {
		d.ReadBytes += dev.ReadBytes
		d.WriteBytes += dev.WriteBytes
	}
}

// table reads a file of lines "key number".
func table(dir, file string) map[string]uint64 {
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[key] = n
		}
	}
	return out
}

// micros reads microseconds; 0 for what is no number, as "max" and "-1".
func micros(text string) time.Duration {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// stallsOf reads the pressure files of a cgroup; nil: there are none.
func stallsOf(dir string) *PSI {
	var s PSI
	found := false
	for of, to := range map[string]*PSIStats{"cpu": &s.CPU, "memory": &s.Memory, "io": &s.IO} {
		text, err := os.ReadFile(filepath.Join(dir, of+".pressure"))
		if err != nil {
			continue
		}
		found = true
		for line := range strings.Lines(string(text)) { // some avg10=0.00 avg60=0.00 avg300=0.00 total=0
			words := strings.Fields(line)
			switch {
			case len(words) == 0:
			case words[0] == "some":
				to.Some = stallTime(words[1:])
			case words[0] == "full":
				to.Full = stallTime(words[1:])
			}
		}
	}
	if !found {
		return nil
	}
	return &s
}

func stallTime(words []string) (t PSIData) {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		switch key {
		case "avg10":
			t.Avg10 = n
		case "avg60":
			t.Avg60 = n
		case "avg300":
			t.Avg300 = n
		case "total":
			t.Total = time.Duration(n) * time.Microsecond
		}
	}
	return t
}
