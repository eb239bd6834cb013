package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const page = 4096

// meminfo returns a value of /proc/meminfo in bytes.
func meminfo(t *testing.T, name string) (bytes int) {
	t.Helper()
	for line := range strings.Lines(readFile(t, "/proc/meminfo")) {
		if text, ok := strings.CutPrefix(line, name+":"); ok {
			if _, err := fmt.Sscan(text, &bytes); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bytes << 10
}

// memoryProtection checks memory.min, memory.low and memory.high of pods and containers.
func memoryProtection(t *testing.T) {
	steady, exact, poor := waitRunning(t, "steady"), waitRunning(t, "exact"), waitRunning(t, "poor")
	scope := func(slice, id string) string { return slice + "/cri-containerd-" + id + ".scope" }
	of := podSlice(burstable, steady)
	checkFiles(t, of, map[string]string{"memory.min": "0", "memory.low": "33554432", "memory.high": "max"})
	// Request 32 MiB, limit 64 MiB: memory.high is 60.8 MiB, rounded down to pages.
	checkFiles(t, scope(of, containerID(steady)), map[string]string{"memory.min": "0", "memory.low": "33554432",
		"memory.high": "63750144"})
	checkProperties(t, base(of), map[string]string{"MemoryLow": "33554432"})
	of = podSlice("kubepods.slice", exact)
	checkFiles(t, of, map[string]string{"memory.min": "50331648", "memory.low": "0", "memory.high": "max"})
	checkFiles(t, scope(of, containerID(exact)), map[string]string{"memory.min": "50331648", "memory.low": "0",
		"memory.high": "max"})
	of = podSlice(bestEffort, poor)
	huge := meminfo(t, "Hugetlb") // reserved at boot
	if huge == 0 {
		t.Error("the machine has no huge pages: their exclusion from allocatable memory is not tested")
	}
	allocatable := meminfo(t, "MemTotal") - 128<<20 - 100<<20 - huge
	checkFiles(t, of, map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"})
	checkFiles(t, scope(of, containerID(poor)), map[string]string{"memory.min": "0", "memory.low": "0",
		"memory.high": fmt.Sprint(int(0.9*float64(allocatable)) / page * page)})
	checkFiles(t, bestEffort, map[string]string{"memory.low": "0"})
	waitFor(t, "the protection of all pods to be the sum of the pods", func() (bool, string) {
		number := func(dir, name string) int {
			n, err := strconv.Atoi(readCgroup(dir, name))
			if err != nil {
				t.Error(err)
			}
			return n
		}
		guaranteed, low, sum := number("kubepods.slice", "memory.min"), number("kubepods.slice",
			"memory.low"), number(burstable, "memory.low")
		return guaranteed == 48<<20 && sum >= 32<<20 && low == guaranteed+sum, fmt.Sprint(guaranteed, low, sum)
	})
}

// limitedSwap enables swap on the machine and checks that a new Burstable pod gets its share.
func limitedSwap(t *testing.T) {
	swapOn(t, "/swapfile", 32<<20)
	createPods(t, map[string]string{"swapper": "  hostNetwork: true\n  containers:\n  - name: c\n" + sleepContainer +
		"    resources: {requests: {memory: 32Mi}, limits: {memory: 64Mi}}\n"})
	p := waitRunning(t, "swapper")
	share := float64(32<<20) / float64(meminfo(t, "MemTotal")) * float64(meminfo(t, "SwapTotal"))
	if int(share) < page {
		t.Errorf("swap share of %v bytes is below one page", share)
	}
	checkFiles(t, podSlice(burstable, p)+"/cri-containerd-"+containerID(p)+".scope",
		map[string]string{"memory.swap.max": fmt.Sprint(int(share) / page * page)})
	steady := waitRunning(t, "steady")
	// It was created before swap was enabled.
	checkFiles(t, podSlice(burstable, steady)+"/cri-containerd-"+containerID(steady)+".scope",
		map[string]string{"memory.swap.max": "0"})
	removePods(t, "swapper")
	if err := swapOff("/swapfile"); err != nil {
		t.Error(err)
	}
}

// swapOn creates a swap file and enables it.
func swapOn(t *testing.T, path string, size int) {
	t.Helper()
	text := make([]byte, size)
	binary.LittleEndian.PutUint32(text[1024:], 1) // version
	binary.LittleEndian.PutUint32(text[1028:], uint32(size/page-1))
	copy(text[page-10:], "SWAPSPACE2")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	unix.Sync() // swapon needs allocated blocks
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
		t.Fatalf("swapon: %v", errno)
	}
}

func swapOff(path string) error {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(name)), 0, 0); errno != 0 {
		return errno
	}
	return os.Remove(path)
}
