package pressure

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is what a threshold may be about, as upstream names it.
type Signal string

// The signals. Memory and disk in bytes, the rest in pieces.
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

// Condition is the node's condition that the signal is about; empty: it is no
// signal.
func (s Signal) Condition() corev1.NodeConditionType {
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return corev1.NodeMemoryPressure
	case NodefsAvailable, NodefsInodesFree, ImagefsAvailable, ImagefsInodesFree, ContainerfsAvailable, ContainerfsInodesFree:
		return corev1.NodeDiskPressure
	case PIDAvailable:
		return corev1.NodePIDPressure
	}
	return ""
}

// Resource is what must be taken from pods, in upstream's words.
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

// Requestable reports whether pods can request what must be taken from them.
func (s Signal) Requestable() bool { return s.Resource() != PIDs && s.Resource() != Inodes }

// Resources that Kubernetes has no name for elsewhere.
const (
	Inodes corev1.ResourceName = "inodes"
	PIDs   corev1.ResourceName = "pids"
)

// Level is how much there is, and how much of it there could be.
type Level struct{ Available, Capacity int64 }

// Reading is one look at the node. What could not be read is absent.
type Reading struct {
	At              time.Time
	Levels          map[Signal]Level
	MemoryEstimates map[Signal]MemoryEstimate // of memory
	// Layout says that images, or what containers write, lie on another file
	// system than the pods' volumes and logs.
	Layout FileSystemLayout
}

// FileSystemLayout tells the node's file systems apart.
type FileSystemLayout struct {
	DedicatedImageFs   bool // images are not on nodefs
	SplitContainerFs   bool // what containers write is not where images are
	ContainersOnNodefs bool // with Containers: it is where volumes and logs are
}

// MemoryEstimate is the other source for a signal of memory: an estimate of what could be
// given out without swapping, and how much tasks wait for memory.
type MemoryEstimate struct {
	Name      string // of the estimate, as MemAvailable
	Available int64  // bytes

	HasPSI         bool    // the kernel tells them
	StalledPercent float64 // percent of the last 10 s in which all tasks that could run waited for memory
}

// stallBound is the share of time, in percent, from which on waiting counts as
// memory being short, whatever the estimate says: what is counted as available
// is then being read back from the disk all the time.
const stallBound = 10

// Threshold is met when there is less than it says of its signal.
type Threshold struct {
	Signal            Signal
	Hard              bool
	Quantity          int64   // 0: Percent counts
	Percent           float64 // of the capacity
	GracePeriod       time.Duration
	MinReclaim        int64 // how much more must be there before it is met no more
	MinReclaimPercent float64
}

// value is the least that must be there; with reclaim after something was done.
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

// Format writes an amount of a signal as upstream does.
func (s Signal) Format(n int64) string {
	switch s.Resource() {
	case Inodes, PIDs:
		return resource.NewQuantity(n, resource.DecimalSI).String()
	default:
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
}

// order puts thresholds in the order in which they are acted on: memory first,
// for it kills soonest; hard before soft.
func order(a, b Threshold) int {
	weight := func(t Threshold) int {
		w := map[corev1.NodeConditionType]int{corev1.NodeMemoryPressure: 0, corev1.NodeDiskPressure: 2, corev1.NodePIDPressure: 4}[t.Signal.Condition()]
		if !t.Hard {
			w++
		}
		return w
	}
	return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a.Signal, b.Signal))
}

// ThresholdMet is a threshold that is met, and by what.
type ThresholdMet struct {
	Threshold
	Level
	Minimum int64  // what should be there
	Source  string // of memory: the sources that say so; else empty
}

// String tells it in one sentence without a full stop.
func (m ThresholdMet) String() string {
	text := fmt.Sprintf("%s is %s, less than %s", m.Signal, m.Signal.Format(m.Available), m.Signal.Format(m.Minimum))
	if m.Source != "" {
		text += " (" + m.Source + ")"
	}
	return text
}
