package node

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Memory is the memory usage of the host in bytes.
type Memory struct {
	Total, Used, WorkingSet, Anonymous, Cache, Mapped uint64
	Available                                         uint64 // available without swapping; 0: unknown
	SwapUsed, SwapFree                                uint64
}

// ReadMemory reads the current memory usage of the host. The working set is the used memory less
// inactive file pages.
func ReadMemory() (Memory, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, fmt.Errorf("read host memory: %w", err)
	}
	return parseMemory(text), nil
}

func parseMemory(text []byte) Memory {
	v := map[string]uint64{}
	for line := range bytes.Lines(text) { // MemTotal:       24623148 kB
		words := strings.Fields(string(line))
		if len(words) < 2 {
			continue
		}
		if n, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			v[strings.TrimSuffix(words[0], ":")] = n << 10
		}
	}
	less := func(a, b uint64) uint64 { return a - min(a, b) }
	m := Memory{
		Total: v["MemTotal"], Used: less(v["MemTotal"], v["MemFree"]), Anonymous: v["AnonPages"],
		Cache: v["Cached"] + v["Buffers"], Mapped: v["Mapped"], Available: v["MemAvailable"],
		SwapUsed: less(v["SwapTotal"], v["SwapFree"]), SwapFree: v["SwapFree"],
	}
	m.WorkingSet = less(m.Used, v["Inactive(file)"])
	return m
}

// Interface is the traffic of a network interface.
type Interface struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// Interfaces reads the interfaces in the network namespace of a process, without loopback and the
// host ends of pod links. It returns none if the process is gone.
func Interfaces(pid int) []Interface {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/net/dev")
	if err != nil {
		return nil
	}
	return parseInterfaces(text)
}

func parseInterfaces(text []byte) (out []Interface) {
	for line := range bytes.Lines(text) { // eth0: 8 receive counters, 8 transmit counters
		name, rest, ok := strings.Cut(string(line), ":")
		if name = strings.TrimSpace(name); !ok || name == "lo" || strings.HasPrefix(name, "veth") {
			continue
		}
		n := make([]uint64, 0, 16)
		for word := range strings.FieldsSeq(rest) {
			v, err := strconv.ParseUint(word, 10, 64)
			if err != nil {
				break
			}
			n = append(n, v)
		}
		if len(n) < 12 {
			continue
		}
		out = append(out, Interface{
			Name: name, RxBytes: n[0], RxPackets: n[1], RxErrors: n[2], RxDropped: n[3],
			TxBytes: n[8], TxPackets: n[9], TxErrors: n[10], TxDropped: n[11],
		})
	}
	return out
}

// Disk is the usage of a file system in bytes and inodes.
type Disk struct{ Capacity, Available, Used, Inodes, InodesFree uint64 }

// ReadDisk reads the usage of the file system that contains path.
func ReadDisk(path string) (Disk, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return Disk{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	size := uint64(fs.Bsize)
	return Disk{
		Capacity: fs.Blocks * size, Available: fs.Bavail * size, Used: (fs.Blocks - fs.Bfree) * size,
		Inodes: fs.Files, InodesFree: fs.Ffree,
	}, nil
}

// BootTime returns the time of the last boot, zero if it is unknown.
func BootTime() time.Time {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("btime ")); ok {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(rest)), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}

// Processes returns the number of tasks on the host and their limit.
func Processes() (now, most int64) {
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		if text, err := os.ReadFile(file); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil &&
				(most == 0 || n < most) {
				most = n
			}
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil { // sysinfo(2) counts in 16 bits
		now = tasks(string(text))
	}
	return now, most
}

// tasks parses the number of tasks in "0.00 0.01 0.05 1/123 4567". It returns 0 if it is missing.
func tasks(text string) int64 {
	words := strings.Fields(text)
	if len(words) < 4 {
		return 0
	}
	_, all, _ := strings.Cut(words[3], "/")
	n, _ := strconv.ParseInt(all, 10, 64)
	return n
}
