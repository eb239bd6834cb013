package server

import "time"

// Stats is the resource usage of the node and its pods at one moment.
type Stats struct {
	Node NodeStats
	Pods []PodStats
}

// NodeStats is the usage of the whole host.
type NodeStats struct {
	Name       string
	Started    time.Time // boot time of the host
	CPUs       int
	Memory     uint64 // total memory in bytes
	Usage      Usage  // of the root cgroup
	Swap       Swap
	Interfaces []Interface
	NodeFs     *FsStats // file system of the root directory
	ImageFs    *FsStats // file system of the images
	MaxPID     int64
	Processes  int64
}

// PodStats is the usage of one pod.
type PodStats struct {
	Namespace, Name, UID   string
	Started                time.Time // zero: not started
	Cgroup                 string    // path relative to the root of the hierarchy
	Usage                  Usage     // including the sandbox
	Sandbox, SandboxCgroup string    // ID and cgroup; empty: none
	Interfaces             []Interface
	Containers             []ContainerStats
	Volumes                []VolumeStats // only if file systems were requested
	EphemeralStorage       *FsStats      // only if file systems were requested
}

// ContainerStats is the usage of one running container.
type ContainerStats struct {
	Name, ID, Image string
	Started         time.Time
	Cgroup          string
	Usage           Usage
	Rootfs, Logs    *FsStats // only if file systems were requested
}

// VolumeStats is the usage of a volume.
type VolumeStats struct {
	Name  string
	Claim string // its PersistentVolumeClaim; empty: none
	FsStats
	Abnormal *bool // health that its CSI driver reports; nil: not known
}

// Usage is the usage of one cgroup and its descendants. A value that the kernel does not provide is
// zero.
type Usage struct {
	Timestamp           time.Time     // time of measurement; zero: the cgroup does not exist
	CPU, User, System   time.Duration // total of all CPUs since the cgroup was created
	CFSPeriods          uint64        // elapsed CFS periods
	CFSThrottledPeriods uint64        // CFS periods in which it was throttled
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
	MemoryLimit uint64 // 0: no limit

	PSI *PSI // nil: not supported by the kernel
}

// CPULimit is the CFS quota per period.
type CPULimit struct{ Quota, Period time.Duration }

// Device is the I/O of one block device.
type Device struct {
	Name                                     string // such as /dev/sda
	ReadBytes, WriteBytes, ReadOps, WriteOps uint64
}

// PSI is the pressure stall information of a cgroup.
type PSI struct{ CPU, Memory, IO PSIStats }

// PSIStats is the time in which some or all tasks waited for one resource.
type PSIStats struct{ Some, Full PSIData }

// PSIData is the share of the last 10, 60 and 300 seconds in percent, and the total time since the
// cgroup was created.
type PSIData struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Swap is the swap usage of the host.
type Swap struct{ Used, Free uint64 }

// Interface contains the counters of a network interface.
type Interface struct {
	Name                                                                             string
	RxBytes, RxPackets, RxErrors, RxDropped, TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// FsStats is a file system and the part of it that is used by the object it is reported for.
type FsStats struct {
	Timestamp                      time.Time
	Capacity, Available, Used      uint64 // bytes
	Inodes, InodesFree, InodesUsed uint64
}
