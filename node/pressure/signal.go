package pressure

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is the signal of an eviction threshold, with upstream's name.
type Signal string

// The signals. Memory and disk are in bytes, the others are counts.
const (
	MemoryAvailable            Signal = "memory.available"
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodefsAvailable            Signal = "nodefs.available"
	NodefsInodesFree           Signal = "nodefs.inodesFree"
	ImagefsAvailable           Signal = "imagefs.available"
	ImagefsInodesFree          Signal = "imagefs.inodesFree"
	ContainerfsAvailable       Signal = "containerfs.available"
	ContainerfsInodesFree      Signal = "containerfs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

// NodeConditions are the pressure conditions in upstream's order.
var NodeConditions = []corev1.NodeConditionType{
	corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// Condition returns the node condition of a signal. Empty: the signal is unknown.
func (s Signal) Condition() corev1.NodeConditionType {
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return corev1.NodeMemoryPressure
	case NodefsAvailable,
		NodefsInodesFree,
		ImagefsAvailable,
		ImagefsInodesFree,
		ContainerfsAvailable,
		ContainerfsInodesFree:
		return corev1.NodeDiskPressure
	case PIDAvailable:
		return corev1.NodePIDPressure
	}
	return ""
}

// Resource returns the resource to reclaim, with upstream's name.
func (s Signal) Resource() corev1.ResourceName {
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return corev1.ResourceMemory
	case NodefsAvailable, ImagefsAvailable, ContainerfsAvailable:
		return corev1.ResourceEphemeralStorage
	case NodefsInodesFree, ImagefsInodesFree, ContainerfsInodesFree:
		return Inodes
	case PIDAvailable:
		return PIDs
	}
	return ""
}

// Requestable reports whether pods can request the resource.
func (s Signal) Requestable() bool { return s.Resource() != PIDs && s.Resource() != Inodes }

// Resources without a constant in the Kubernetes API.
const (
	Inodes corev1.ResourceName = "inodes"
	PIDs   corev1.ResourceName = "pids"
)

// Level is the available amount and the capacity.
type Level struct{ Available, Capacity int64 }

// Reading contains the signals of the node at one time. Unreadable signals are missing.
type Reading struct {
	At              time.Time
	Levels          map[Signal]Level
	MemoryEstimates map[Signal]MemoryEstimate // memory signals only
	// Layout describes which data share a file system.
	Layout FileSystemLayout
}

// FileSystemLayout describes which data share a file system.
type FileSystemLayout struct {
	DedicatedImageFs   bool // images are not on nodefs
	SplitContainerFs   bool // writable layers are not on the image file system
	ContainersOnNodefs bool // with SplitContainerFs: writable layers are on nodefs
}

// MemoryEstimate is the second source of a memory signal: an estimate of the memory available
// without swapping, and the memory pressure.
type MemoryEstimate struct {
	Name      string // such as MemAvailable
	Available int64  // bytes

	HasPSI         bool    // the kernel reports StalledPercent
	StalledPercent float64 // percentage of the last 10 s in which all runnable tasks waited for memory
}

// psiThreshold is the percentage of stalled time from which memory counts as short whatever the
// estimate says: the memory counted as available is then constantly read back from disk.
const psiThreshold = 10

// Threshold is met when less than its value is available.
type Threshold struct {
	Signal            Signal
	Hard              bool
	Quantity          int64   // 0: use Percent
	Percent           float64 // of the capacity
	GracePeriod       time.Duration
	MinReclaim        int64 // additional amount that ends the reclaiming
	MinReclaimPercent float64
}

// value returns the required amount, with reclaim including the minimum reclaim.
func (t Threshold) value(capacity int64, reclaim bool) int64 {
	share := func(n int64, percent float64) int64 {
		if n != 0 || percent == 0 {
			return n
		}
		return int64(float64(capacity) * percent / 100)
	}
	v := share(t.Quantity, t.Percent)
	if reclaim {
		v += share(t.MinReclaim, t.MinReclaimPercent)
	}
	return v
}

// Format formats an amount as upstream does.
func (s Signal) Format(n int64) string {
	switch s.Resource() {
	case Inodes, PIDs:
		return resource.NewQuantity(n, resource.DecimalSI).String()
	default:
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
}

// compareUrgency sorts thresholds by urgency: memory first, because its shortage kills processes
// soonest, and hard thresholds before soft ones.
func compareUrgency(a, b Threshold) int {
	weight := func(t Threshold) int {
		w := map[corev1.NodeConditionType]int{
			corev1.NodeMemoryPressure: 0, corev1.NodeDiskPressure: 2, corev1.NodePIDPressure: 4,
		}[t.Signal.Condition()]
		if !t.Hard {
			w++
		}
		return w
	}
	return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a.Signal, b.Signal))
}

// ThresholdMet is a threshold that is met.
type ThresholdMet struct {
	Threshold
	Level
	Minimum int64  // required amount
	Source  string // sources of a memory signal that agree; empty for others
}

// String describes the threshold in a sentence without a full stop.
func (m ThresholdMet) String() string {
	text := fmt.Sprintf("%s is %s, less than %s", m.Signal, m.Signal.Format(m.Available), m.Signal.Format(m.Minimum))
	if m.Source != "" {
		text += " (" + m.Source + ")"
	}
	return text
}
