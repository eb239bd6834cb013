package server

import "time"

// Figures is what the node and its pods use at one moment.
type Figures struct {
	Node NodeFigures
	Pods []PodFigures
}

// NodeFigures is what the whole host uses.
type NodeFigures struct {
	Name       string
	Started    time.Time // when the host was booted
	CPUs       int
	Memory     uint64 // bytes the host has
	Use        Use    // the whole host
	Swap       Swap
	Interfaces []Interface
	Disk       *Disk // where pods' files lie
	Images     *Disk // where images lie
	MaxPID     int64
	Processes  int64
}

// PodFigures is what one pod uses.
type PodFigures struct {
	Namespace, Name, UID string
	Started              time.Time // zero: not yet
	Cgroup               string    // its path from the hierarchy's root
	Use                  Use       // its sandbox included
	Sandbox, SandboxPath string    // ID and cgroup; empty: none
	Interfaces           []Interface
	Containers           []ContainerFigures
	Volumes              []VolumeFigures // if disks were asked for
	Ephemeral            *Disk           // likewise: what of the disk is the pod's
}

// ContainerFigures is what one running container uses.
type ContainerFigures struct {
	Name, ID, Image string
	Started         time.Time
	Cgroup          string
	Use             Use
	Root, Logs      *Disk // if disks were asked for
}

// VolumeFigures is what a volume holds.
type VolumeFigures struct {
	Name string
	Disk
}

// Use is what one cgroup has used, with all below it. What the kernel does not
// tell is zero.
type Use struct {
	At                time.Time     // when it was read; zero: there is no such cgroup
	CPU, User, System time.Duration // of all CPUs together, since it was made
	Periods           uint64        // of the CPU limit
	Throttled         uint64        // of them, in which it had to wait
	ThrottledTime     time.Duration

	Memory, WorkingSet, RSS, Cache, Mapped, Peak uint64 // bytes
	Swap                                         uint64 // bytes
	Faults, MajorFaults                          uint64
	OOMKills                                     uint64

	Devices   []Device
	Processes uint64
	Threads   uint64

	CPULimit    *CPULimit // nil: none
	CPUShares   uint64
	MemoryLimit uint64 // 0: none

	Pressure *Pressure // nil: this kernel has no such figures
}

// CPULimit is time of CPU per period.
type CPULimit struct{ Quota, Period time.Duration }

// Device is what went to and from one block device.
type Device struct {
	Name                                     string // as /dev/sda
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
}

// Pressure is how much tasks waited.
type Pressure struct{ CPU, Memory, IO Stall }

// Stall is how much some and all tasks waited for one resource.
type Stall struct{ Some, Full StallTime }

// StallTime is a share of the last 10, 60 and 300 seconds in percent, and the time
// since the cgroup was made.
type StallTime struct {
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

// Disk is a file system, and what of it is used by whom it is told of.
type Disk struct {
	At                             time.Time
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
}
