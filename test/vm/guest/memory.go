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

// meminfo is a figure of the kernel's, in bytes.
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

// memoryKept is what the kernel should leave pods and containers of their memory, and
// from where on it slows them down.
func memoryKept(t *testing.T) {
	steady, exact, poor := running(t, "steady"), running(t, "exact"), running(t, "poor")
	scope := func(slice, id string) string { return slice + "/cri-containerd-" + id + ".scope" }
	of := podSlice(tier, steady)
	files(t, of, map[string]string{"memory.min": "0", "memory.low": "33554432", "memory.high": "max"})
	// 32 MiB are asked for, 64 are the limit: 60.8 in whole pages.
	files(t, scope(of, id(steady)), map[string]string{"memory.min": "0", "memory.low": "33554432", "memory.high": "63750144"})
	has(t, base(of), map[string]string{"MemoryLow": "33554432"})
	of = podSlice("kubepods.slice", exact)
	files(t, of, map[string]string{"memory.min": "50331648", "memory.low": "0", "memory.high": "max"})
	files(t, scope(of, id(exact)), map[string]string{"memory.min": "50331648", "memory.low": "0", "memory.high": "max"})
	of = podSlice(least, poor)
	huge := meminfo(t, "Hugetlb") // set aside at boot
	if huge == 0 {
		t.Error("the machine has no huge pages: that they are no pod's memory is not seen")
	}
	allocatable := meminfo(t, "MemTotal") - 128<<20 - 100<<20 - huge
	files(t, of, map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"})
	files(t, scope(of, id(poor)), map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": fmt.Sprint(int(0.9*float64(allocatable)) / page * page)})
	files(t, least, map[string]string{"memory.low": "0"})
	wait(t, "what is kept for all pods to be the sum", func() (bool, string) {
		number := func(dir, name string) int {
			n, err := strconv.Atoi(file(dir, name))
			if err != nil {
				t.Error(err)
			}
			return n
		}
		whole, low, sum := number("kubepods.slice", "memory.min"), number("kubepods.slice", "memory.low"), number(tier, "memory.low")
		return whole == 48<<20 && sum >= 32<<20 && low == whole+sum, fmt.Sprint(whole, low, sum)
	})
}

// limitedSwap gives the machine swap: from then on a Burstable pod gets its part of it.
func limitedSwap(t *testing.T) {
	swapOn(t, "/swapfile", 32<<20)
	put(t, map[string]string{"swapper": "  hostNetwork: true\n  containers:\n  - name: c\n" + box + "    resources: {requests: {memory: 32Mi}, limits: {memory: 64Mi}}\n"})
	p := running(t, "swapper")
	share := float64(32<<20) / float64(meminfo(t, "MemTotal")) * float64(meminfo(t, "SwapTotal"))
	if int(share) < page {
		t.Errorf("%v bytes of swap show nothing", share)
	}
	files(t, podSlice(tier, p)+"/cri-containerd-"+id(p)+".scope", map[string]string{"memory.swap.max": fmt.Sprint(int(share) / page * page)})
	steady := running(t, "steady")
	files(t, podSlice(tier, steady)+"/cri-containerd-"+id(steady)+".scope", map[string]string{"memory.swap.max": "0"}) // made before
	drop(t, "swapper")
	if err := swapOff("/swapfile"); err != nil {
		t.Error(err)
	}
}

// swapOn makes a file that the kernel swaps to.
func swapOn(t *testing.T, path string, size int) {
	t.Helper()
	text := make([]byte, size)
	binary.LittleEndian.PutUint32(text[1024:], 1) // version
	binary.LittleEndian.PutUint32(text[1028:], uint32(size/page-1))
	copy(text[page-10:], "SWAPSPACE2")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	unix.Sync() // swap needs its blocks
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
