package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"golang.org/x/sys/unix"

	"berth/internal/nodeconfig"
)

// Capacity returns the capacity of the host: cpu, memory, ephemeral-storage (of the file system
// that contains root), hugepages by size, and pods.
func Capacity(root string, pods int) (corev1.ResourceList, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read host memory: %w", err)
	}
	total, err := meminfo(text, "MemTotal")
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", root, err)
	}
	out := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(total, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(fs.Blocks)*fs.Bsize, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(pods), resource.DecimalSI),
	}
	for size, n := range hugepages("/sys/kernel/mm/hugepages") {
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix +
			resource.NewQuantity(size, resource.BinarySI).String())
		out[name] = *resource.NewQuantity(size*n, resource.BinarySI)
	}
	return out, nil
}

// SwapTotal returns the size of the host's swap in bytes, 0 if it cannot be read.
func SwapTotal() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	total, err := meminfo(text, "SwapTotal")
	if err != nil {
		return 0
	}
	return total
}

// Allocatable returns the resources that pods may request: the capacity less the reservations, and
// for memory also less the huge pages, which the kernel has reserved and which pods request by
// size.
func Allocatable(capacity corev1.ResourceList, reserved ...corev1.ResourceList) corev1.ResourceList {
	out := Unreserved(capacity, reserved...)
	for name, q := range capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			subtract(out, corev1.ResourceMemory, q)
		}
	}
	return out
}

// Unreserved returns the capacity less the reservations.
func Unreserved(capacity corev1.ResourceList, reserved ...corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	for _, r := range reserved {
		for name, q := range r {
			subtract(out, name, q)
		}
	}
	return out
}

// subtract reduces a resource by q, at most to zero.
func subtract(of corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	left, has := of[name]
	if !has {
		return
	}
	left.Sub(q)
	if left.Sign() < 0 {
		left = resource.Quantity{Format: left.Format}
	}
	of[name] = left
}

// ValidateReserved returns an error if more of a resource is reserved than the host has.
func ValidateReserved(capacity corev1.ResourceList, reserved ...corev1.ResourceList) error {
	all := corev1.ResourceList{}
	for _, r := range reserved {
		for name, q := range r {
			sum := all[name]
			sum.Add(q)
			all[name] = sum
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if has, reserved := capacity[name], all[name]; reserved.Cmp(has) > 0 {
			return fmt.Errorf(
				"reserved %s (systemReserved, kubeReserved) is %s, but the capacity is %s",
				name,
				reserved.String(),
				has.String(),
			)
		}
	}
	return nil
}

// CheckCgroupVersion returns an error if the configuration requires cgroup v2 and the host has cgroup v1.
func CheckCgroupVersion(c nodeconfig.Cgroups, v2 bool) error {
	if c.FailV1 && !v2 {
		return errors.New("failCgroupV1: this host has cgroup v1")
	}
	return nil
}

// CheckSwap returns an error if the configuration permits no swap and the host uses it.
func CheckSwap(c nodeconfig.Cgroups) error {
	if swap, err := SwapEnabled(); err == nil && swap && c.FailSwapOn {
		return errors.New("failSwapOn: this host has swap; disable it, or set failSwapOn: false")
	}
	return nil
}

// SwapEnabled reports whether the host uses swap.
func SwapEnabled() (bool, error) {
	text, err := os.ReadFile("/proc/swaps")
	if os.IsNotExist(err) { // a kernel without swap
		return false, nil
	}
	return bytes.Count(text, []byte("\n")) > 1, err // the first line is the header
}

// meminfo returns a value of /proc/meminfo in bytes.
func meminfo(text []byte, key string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if name != key {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/meminfo: %s: %w", key, err)
		}
		return kib << 10, nil
	}
	return 0, fmt.Errorf("/proc/meminfo: no %s", key)
}

// hugepages returns the number of huge pages by size in bytes.
func hugepages(dir string) map[int64]int64 {
	out := map[int64]int64{}
	entries, _ := os.ReadDir(dir) // a kernel without huge pages has none
	for _, e := range entries {
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(e.Name(), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil {
			out[kib<<10] = n
		}
	}
	return out
}

// MaxPods is the maximum number of pods on this host. perCore is the maximum per CPU; 0: no such
// limit.
func MaxPods(most, perCore int) int {
	if perCore == 0 {
		return most
	}
	return min(most, perCore*runtime.NumCPU())
}
