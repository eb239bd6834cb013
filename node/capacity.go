package node

import (
	"bufio"
	"bytes"
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
)

// Capacity returns what the host has: cpu, memory, ephemeral-storage (of the
// file system that root lies on), hugepages by size, and pods.
func Capacity(root string, pods int) (corev1.ResourceList, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read the host's memory: %w", err)
	}
	total, err := meminfo(text, "MemTotal")
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return nil, fmt.Errorf("size of the file system of %s: %w", root, err)
	}
	out := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(total, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(fs.Blocks)*fs.Bsize, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(pods), resource.DecimalSI),
	}
	for size, n := range hugepages("/sys/kernel/mm/hugepages") {
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
		out[name] = *resource.NewQuantity(size*n, resource.BinarySI)
	}
	return out, nil
}

// SwapTotal is how many bytes of swap the host has; 0 where that cannot be read.
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

// Allocatable is what of the capacity pods may ask for: less what is reserved,
// less what must stay free, and of memory less the huge pages, which the kernel
// has set aside and which pods ask for by their size.
func Allocatable(capacity corev1.ResourceList, reserved ...corev1.ResourceList) corev1.ResourceList {
	out := Unreserved(capacity, reserved...)
	for name, q := range capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			less(out, corev1.ResourceMemory, q)
		}
	}
	return out
}

// Unreserved is the capacity less what is reserved of it.
func Unreserved(capacity corev1.ResourceList, reserved ...corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	for _, r := range reserved {
		for name, q := range r {
			less(out, name, q)
		}
	}
	return out
}

// less takes from what there is of a resource, at most all.
func less(of corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
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

// ValidateReserved says which resource more is reserved of than the host has.
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
		if has, asked := capacity[name], all[name]; asked.Cmp(has) > 0 {
			return fmt.Errorf("%s of %s are reserved (systemReserved, kubeReserved), and the host has %s", asked.String(), name, has.String())
		}
	}
	return nil
}

// SwapEnabled reports whether the host uses any swap.
func SwapEnabled() (bool, error) {
	text, err := os.ReadFile("/proc/swaps")
	if os.IsNotExist(err) { // a kernel without swap
		return false, nil
	}
	return bytes.Count(text, []byte("\n")) > 1, err // the first line is the head
}

// meminfo reads one value of /proc/meminfo, in bytes.
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
