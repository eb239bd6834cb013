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

// Detail contains the kernel's statistics of a cgroup and its descendants. Missing values are zero.
type Detail struct {
	Usage
	Path          string        // from the root of the hierarchy, such as /kubepods/burstable/pod…
	User, System  time.Duration // CPU time
	Periods       uint64        // of the CPU quota
	Throttled     uint64        // throttled periods
	ThrottledTime time.Duration

	RSS, Cache, Mapped, Peak, Swap uint64 // bytes
	Faults, MajorFaults, OOMKills  uint64

	Devices []Device
	Threads int
	PID     int // a process of the cgroup or its descendants; 0: none

	Quota, Period time.Duration // CPU quota; 0: none
	Shares        uint64        // CPU weight in v1's unit
	MemoryLimit   uint64        // bytes; 0: none
	PSI           *PSI          // nil: not supported by this kernel or hierarchy
}

// Device is the I/O of a block device.
type Device struct {
	Name                                     string // such as /dev/sda
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
}

// PSI is the pressure stall information of a cgroup.
type PSI struct{ CPU, Memory, IO PSIStats }

// PSIStats is the pressure of one resource.
type PSIStats struct{ Some, Full PSIData }

// PSIData contains averages over 10, 60 and 300 seconds in percent, and the total since the cgroup
// was created.
type PSIData struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// PodDetail contains the statistics of a pod and its containers.
type PodDetail = Measured[Detail]

// Details is like Usage with all statistics.
func (c *Cgroups) Details(ctx context.Context, pods map[types.UID][]string) (map[types.UID]PodDetail, error) {
	return readPods(ctx, c, pods, c.detail)
}

// RootDetail returns the statistics of the root of the hierarchy. On cgroup v2 it has no memory
// statistics.
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

// count counts the processes of a hierarchy. A runtime may not join all hierarchies.
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

// v2 reads cgroup v2. On a hybrid host only the pressure is available.
func (d *Detail) v2(dir string, whole bool) {
	if s := readPSI(dir); s != nil {
		d.PSI = s
		d.Pressure = &Pressure{CPU: s.CPU.Some.Avg10, Memory: s.Memory.Some.Avg10, IO: s.IO.Some.Avg10}
	}
	if !whole {
		return
	}
	cpu := table(dir, "cpu.stat")
	d.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	d.User, d.System = time.Duration(cpu["user_usec"])*time.Microsecond,
		time.Duration(cpu["system_usec"])*time.Microsecond
	d.Periods, d.Throttled = cpu["nr_periods"], cpu["nr_throttled"]
	d.ThrottledTime = time.Duration(cpu["throttled_usec"]) * time.Microsecond
	memory := table(dir, "memory.stat")
	d.memory(number(dir, "memory.current"), memory["inactive_file"])
	d.RSS, d.Cache, d.Mapped = memory["anon"], memory["file"], memory["file_mapped"]
	d.Faults, d.MajorFaults = memory["pgfault"], memory["pgmajfault"]
	d.Peak, d.Swap = number(dir, "memory.peak"), number(dir, "memory.swap.current")
	d.OOMKills = table(dir, "memory.events")["oom_kill"]
	d.MemoryLimit = number(dir, "memory.max") // "max" is read as 0
	if quota := fields(filepath.Join(dir, "cpu.max")); len(quota) == 2 {
		d.Quota, d.Period = micros(quota[0]), micros(quota[1])
	}
	if weight := number(dir, "cpu.weight"); weight > 0 {
		d.Shares = 2 + (weight-1)*262142/9999 // approximate inverse of weightOf
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

// v1 reads one hierarchy of cgroup v1.
func (d *Detail) v1(h hierarchy, dir string) {
	if h.has("cpuacct") {
		d.CPU = time.Duration(number(dir, "cpuacct.usage"))
		parts := table(dir, "cpuacct.stat") // ticks of 10 ms
		d.User, d.System = time.Duration(
			parts["user"],
		)*10*time.Millisecond, time.Duration(
			parts["system"],
		)*10*time.Millisecond
	}
	if h.has("cpu") {
		cpu := table(dir, "cpu.stat")
		d.Periods, d.Throttled, d.ThrottledTime = cpu["nr_periods"], cpu["nr_throttled"],
			time.Duration(cpu["throttled_time"])
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
			d.MemoryLimit = 0 // unlimited
		}
	}
	if h.has("blkio") {
		d.blkio(dir, "io_service_bytes", "rbytes", "wbytes")
		d.blkio(dir, "io_serviced", "rios", "wios")
		d.sum()
	}
}

// blkio reads lines such as "8:0 Read 4096".
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

// device returns the entry of a device, which is identified by major:minor if its name is unknown.
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

// table reads a file with lines "key number".
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

// micros parses microseconds. It returns 0 for "max" and "-1".
func micros(text string) time.Duration {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// readPSI reads the pressure files of a cgroup. Nil: there are none.
func readPSI(dir string) *PSI {
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
				to.Some = parsePSIData(words[1:])
			case words[0] == "full":
				to.Full = parsePSIData(words[1:])
			}
		}
	}
	if !found {
		return nil
	}
	return &s
}

func parsePSIData(words []string) (t PSIData) {
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
