package pressure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Candidate is a pod that may be evicted, with its usage.
type Candidate struct {
	Pod      *corev1.Pod // with its current resources
	Usage    Usage
	Measured bool // false: the usage could not be measured
}

// Usage is the resource usage of a pod in bytes, inodes and tasks.
type Usage struct {
	Memory     int64     // working set
	Tasks      int64     // processes and threads, as limited by PIDs
	Volumes    DiskUsage // local volumes and logs
	Layers     DiskUsage // writable layers
	Containers []ContainerUsage

	// Partial is true if the disk usage is incomplete and may be higher.
	Partial bool
}

// AtLeast combines a partial usage with an earlier one by taking the larger values.
func (u Usage) AtLeast(was Usage) Usage {
	most := func(a, b DiskUsage) DiskUsage { return DiskUsage{max(a.Bytes, b.Bytes), max(a.Inodes, b.Inodes)} }
	u.Volumes, u.Layers = most(u.Volumes, was.Volumes), most(u.Layers, was.Layers)
	return u
}

// DiskUsage is the usage of a file system.
type DiskUsage struct{ Bytes, Inodes int64 }

// ContainerUsage is the usage of one container.
type ContainerUsage struct {
	Name   string
	Memory int64 // working set, bytes
	Disk   int64 // writable layer and logs, bytes
	Layer  int64 // writable layer alone
}

// Ranked is a pod in the eviction order.
type Ranked struct {
	Candidate
	Used, Requested int64 // of the resource
	Priority        int32
	Exceeds         bool // uses more than it requests
}

// Rank orders pods for eviction as upstream does: pods with unknown usage, pods that exceed their
// requests, lower priority, then usage above the request. Pods cannot request processes and inodes,
// so the total usage counts.
func Rank(s Signal, split FileSystemLayout, pods []Candidate) []Ranked {
	order := make([]*Ranked, 0, len(pods)) // the elements are large: sort pointers
	for _, c := range pods {
		r := &Ranked{Candidate: c, Priority: podspec.Priority(c.Pod)}
		r.Used = c.Usage.ofSignal(s, split)
		if q, ok := podspec.Requests(c.Pod)[s.Resource()]; ok && s.Requestable() {
			r.Requested = q.Value()
		}
		r.Exceeds = s.Resource() != PIDs && r.Used > r.Requested
		order = append(order, r)
	}
	slices.SortFunc(order, compareEvictionOrder)
	out := make([]Ranked, len(order))
	for i, r := range order {
		out[i] = *r
	}
	return out
}

func compareEvictionOrder(a, b *Ranked) int {
	first := func(x, y bool) int {
		switch {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	}
	return cmp.Or(
		first(!a.Measured, !b.Measured),
		first(a.Exceeds, b.Exceeds),
		cmp.Compare(a.Priority, b.Priority),
		cmp.Compare(b.Used-b.Requested, a.Used-a.Requested),
		cmp.Compare(
			a.Pod.Namespace,
			b.Pod.Namespace,
		),
		cmp.Compare(a.Pod.Name, b.Pod.Name),
		cmp.Compare(a.Pod.UID, b.Pod.UID), // deterministic
	)
}

// ofSignal returns the usage of the resource that a signal measures.
func (u Usage) ofSignal(s Signal, split FileSystemLayout) int64 {
	var on DiskUsage
	add := func(t DiskUsage) { on.Bytes, on.Inodes = on.Bytes+t.Bytes, on.Inodes+t.Inodes }
	together := !split.DedicatedImageFs && !split.SplitContainerFs ||
		split.ContainersOnNodefs // volumes and layers share a file system
	switch s {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return u.Memory
	case PIDAvailable:
		return u.Tasks
	case NodefsAvailable, NodefsInodesFree:
		add(u.Volumes)
		if together {
			add(u.Layers)
		}
	case ImagefsAvailable, ImagefsInodesFree:
		if !split.SplitContainerFs {
			add(u.Layers)
		}
		if !split.DedicatedImageFs {
			add(u.Volumes)
		}
	case ContainerfsAvailable, ContainerfsInodesFree:
		add(u.Layers)
		if together {
			add(u.Volumes)
		}
	}
	if s.Resource() == Inodes {
		return on.Inodes
	}
	return on.Bytes
}

// Message returns upstream's eviction message.
func Message(m ThresholdMet, r Ranked) string {
	of := m.Signal.Resource()
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ",
		of, m.Signal.Format(m.value(m.Capacity, false)), m.Signal.Format(m.Available))
	for _, c := range r.offending(of) {
		fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ",
			c.name, m.Signal.Format(c.used), c.request, of)
	}
	return b.String()
}

// offender is a container that uses more than it requests.
type offender struct {
	name, request string
	used          int64
}

func (r Ranked) offending(of corev1.ResourceName) (out []offender) {
	for _, u := range r.Usage.Containers {
		used := u.Memory
		switch of {
		case corev1.ResourceMemory:
		case corev1.ResourceEphemeralStorage:
			used = u.Disk
		default:
			return nil
		}
		for _, list := range [][]corev1.Container{r.Pod.Spec.Containers, r.Pod.Spec.InitContainers} {
			for i := range list {
				if list[i].Name != u.Name {
					continue
				}
				if request := list[i].Resources.Requests[of]; used > request.Value() {
					out = append(out, offender{u.Name, request.String(), used})
				}
			}
		}
	}
	return out
}

// UsageString formats the usage of the resource that a signal measures.
func (r Ranked) UsageString(s Signal) string {
	if r.Usage.Partial {
		return "at least " + s.Format(r.Used)
	}
	return s.Format(r.Used)
}

// Explain describes at most the first pods of the order with their usage.
func Explain(s Signal, ranked []Ranked, most int) string {
	parts := make([]string, 0, min(len(ranked), most)+1)
	for i, r := range ranked {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(ranked)-most))
			break
		}
		text := fmt.Sprintf("%d. %s/%s: uses %s", i+1, r.Pod.Namespace, r.Pod.Name, r.UsageString(s))
		if !r.Measured {
			text = fmt.Sprintf("%d. %s/%s: usage unknown", i+1, r.Pod.Namespace, r.Pod.Name)
		}
		if s.Requestable() {
			text += ", requests " + s.Format(r.Requested)
		}
		parts = append(parts, fmt.Sprintf("%s, priority %d", text, r.Priority))
	}
	return strings.Join(parts, "; ")
}
