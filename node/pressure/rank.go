package pressure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// Candidate is a pod that could go, with what it uses.
type Candidate struct {
	Pod      *corev1.Pod // with the resources that it has now
	Usage    Usage
	Measured bool // false: what it uses could not be measured
}

// Usage is what a pod uses: bytes, inodes and tasks.
type Usage struct {
	Memory     int64     // working set
	Tasks      int64     // processes and threads: what is short when PIDs are
	Volumes    DiskUsage // its own volumes on the node's disk, and its logs
	Layers     DiskUsage // what its containers wrote to their own file systems
	Containers []ContainerUsage

	// Partial says that not all that the pod has on the disk could be counted: it may
	// have more.
	Partial bool
}

// AtLeast is a use that was not counted whole, with what an earlier count found where
// that is more.
func (u Usage) AtLeast(was Usage) Usage {
	most := func(a, b DiskUsage) DiskUsage { return DiskUsage{max(a.Bytes, b.Bytes), max(a.Inodes, b.Inodes)} }
	u.Volumes, u.Layers = most(u.Volumes, was.Volumes), most(u.Layers, was.Layers)
	return u
}

// DiskUsage is what is taken of a file system.
type DiskUsage struct{ Bytes, Inodes int64 }

// ContainerUsage is what one container uses.
type ContainerUsage struct {
	Name   string
	Memory int64 // working set, bytes
	Disk   int64 // its own file system and its logs, bytes
	Layer  int64 // of that, its own file system
}

// Ranked is a pod in the order of going.
type Ranked struct {
	Candidate
	Used, Requested int64 // of what is short
	Priority        int32
	Exceeds         bool // uses more than it requests
}

// Rank orders pods by who goes first when a signal is low, as upstream: pods of
// which nothing is known, pods that use more than they request, the lower
// priority, then who uses most beyond its request. Processes and inodes nobody can
// request: of them the most counts.
func Rank(s Signal, split FileSystemLayout, pods []Candidate) []Ranked {
	order := make([]*Ranked, 0, len(pods)) // they are large: sorting moves pointers
	for _, c := range pods {
		r := &Ranked{Candidate: c, Priority: podspec.Priority(c.Pod)}
		r.Used = c.Usage.of(s, split)
		if q, ok := podspec.Requests(c.Pod)[s.Resource()]; ok && s.Requestable() {
			r.Requested = q.Value()
		}
		r.Exceeds = s.Resource() != PIDs && r.Used > r.Requested
		order = append(order, r)
	}
	slices.SortFunc(order, before)
	out := make([]Ranked, len(order))
	for i, r := range order {
		out[i] = *r
	}
	return out
}

func before(a, b *Ranked) int {
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
		cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID), // the same every time
	)
}

// of is what a pod takes of what a signal is about.
func (u Usage) of(s Signal, split FileSystemLayout) int64 {
	var on DiskUsage
	add := func(t DiskUsage) { on.Bytes, on.Inodes = on.Bytes+t.Bytes, on.Inodes+t.Inodes }
	together := !split.DedicatedImageFs && !split.SplitContainerFs || split.ContainersOnNodefs // one file system for volumes and layers
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

// Message tells the pod's owner why it had to go, in upstream's words.
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

// UsageString writes what a pod uses of what a signal is about.
func (r Ranked) UsageString(s Signal) string {
	if r.Usage.Partial {
		return "at least " + s.Format(r.Used)
	}
	return s.Format(r.Used)
}

// Explain lists the order in words, the first at most, with the figures.
func Explain(s Signal, ranked []Ranked, most int) string {
	parts := make([]string, 0, min(len(ranked), most)+1)
	for i, r := range ranked {
		if i == most {
			parts = append(parts, fmt.Sprintf("and %d more", len(ranked)-most))
			break
		}
		text := fmt.Sprintf("%d. %s/%s: uses %s", i+1, r.Pod.Namespace, r.Pod.Name, r.UsageString(s))
		if !r.Measured {
			text = fmt.Sprintf("%d. %s/%s: its use is not known", i+1, r.Pod.Namespace, r.Pod.Name)
		}
		if s.Requestable() {
			text += ", requests " + s.Format(r.Requested)
		}
		parts = append(parts, fmt.Sprintf("%s, priority %d", text, r.Priority))
	}
	return strings.Join(parts, "; ")
}
