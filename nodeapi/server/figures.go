package server

import "time"

// Stats is what the node and its pods use at one moment.
type Stats struct {
	Node NodeStats
	Pods []PodStats
}

// NodeStats is what the whole host uses.
type NodeStats struct {
	Name       string
	Started    time.Time // when the host was booted
	CPUs       int
	Memory     uint64 // bytes the host has
	Usage      Usage  // the whole host
	Swap       Swap
	Interfaces []Interface
	NodeFs     *FsStats // where pods' files lie
	ImageFs    *FsStats // where images lie
	MaxPID     int64
	Processes  int64
}

// PodStats is what one pod uses.
type PodStats struct {
	Namespace, Name, UID   string
	Started                time.Time // zero: not yet
	Cgroup                 string    // its path from the hierarchy's root
	Usage                  Usage     // its sandbox included
	Sandbox, SandboxCgroup string    // ID and cgroup; empty: none
	Interfaces             []Interface
	Containers             []ContainerStats
	Volumes                []VolumeStats // if disks were asked for
	EphemeralStorage       *FsStats      // likewise: what of the disk is the pod's
}

// ContainerStats is what one running container uses.
type ContainerStats struct {
	Name, ID, Image string
	Started         time.Time
	Cgroup          string
	Usage           Usage
	Rootfs, Logs    *FsStats // if disks were asked for
}

// VolumeStats is what a volume holds.
type VolumeStats struct {
	Name string
	FsStats
}

// Usage is what one cgroup has used, with all below it. What the kernel does not
// tell is zero.
type Usage struct {
	Timestamp           time.Time     // when it was read; zero: there is no such cgroup
	CPU, User, System   time.Duration // of all CPUs together, since it was made
	CFSPeriods          uint64        // of the CPU limit
	CFSThrottledPeriods uint64        // of them, in which it had to wait
	CFSThrottledTime    time.Duration

	Memory, WorkingSet, RSS, Cache, MappedFile, MaxUsage uint64 // bytes
	Swap                                                 uint64 // bytes
	Faults, MajorFaults                                  uint64
	OOMKills                                             uint64

	Devices   []Device
	Processes uint64
	Threads   uint64

	CPULimit    *CPULimit // nil: none
	CPUShares   uint64
	MemoryLimit uint64 // 0: none

	PSI *PSI // nil: this kernel has no such figures
}

// CPULimit is time of CPU per period.
type CPULimit struct{ Quota, Period time.Duration }

// Device is what went to and from one block device.
type Device struct {
	Name                                     string // as /dev/sda
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
}

// PSI is how much tasks waited.
type PSI struct{ CPU, Memory, IO PSIStats }

// PSIStats is how much some and all tasks waited for one resource.
type PSIStats struct{ Some, Full PSIData }

// PSIData is a share of the last 10, 60 and 300 seconds in percent, and the time
// since the cgroup was made.
type PSIData struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Swap is what the host has of it.
type Swap struct{ Used, Free uint64 }

// Interface is one of a network's.
type Interface struct {
	Name                                                                             string
	RxBytes, RxPackets, RxErrors, RxDropped, TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// FsStats is a file system, and what of it is used by whom it is told of.
type FsStats struct {
	Timestamp                      time.Time
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
}
