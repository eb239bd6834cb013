package images

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// storedImage is an image on the node as the garbage collection sees it.
type storedImage struct {
	id       string
	names    []string // tags and digests
	size     uint64
	pinned   string    // why it is kept even if unused; empty: it may be removed
	inUse    bool      // by a container or a pod
	detected time.Time // when it was first listed; zero: at the start of the agent
	lastUsed time.Time // when it was last used or, if never, first listed
}

// gcPolicy configures when images are removed.
type gcPolicy struct {
	// percent of the disk in use: at high, images are removed until low is reached; 100: never
	high, low      int
	minAge, maxAge time.Duration // minimum age for removal to free space; maximum unused age (0: none)
	allUnused      bool          // remove all unused images, for a node under disk pressure; those below minAge last
}

// diskUsage is the usage of the image file system, in bytes.
type diskUsage struct{ used, capacity uint64 }

func (d diskUsage) percent() int {
	if d.capacity == 0 {
		return 0
	}
	return int(float64(d.used) / float64(d.capacity) * 100)
}

// imageRemoval is an image to remove with the reason.
type imageRemoval struct {
	storedImage
	reason  RemovalReason
	message string // reason for users
}

// RemovalReason is why an image is removed, named as in the kubelet.
type RemovalReason string

// Reasons for a removal.
const (
	ReasonAge   RemovalReason = "age"   // unused for longer than the maximum age
	ReasonSpace RemovalReason = "space" // disk usage above the threshold
)

// selectRemovals selects the images to remove, in order: those unused for too long, then, if the
// disk is too full, the least recently used ones until enough is freed. short is the number of
// bytes that are still missing. Images that are in use or pinned are never selected.
func selectRemovals(now time.Time, images []storedImage, p gcPolicy,
	d diskUsage) (remove []imageRemoval, short uint64) {
	free := slices.DeleteFunc(slices.Clone(images), func(s storedImage) bool { return s.inUse || s.pinned != "" })
	young := func(s storedImage) int {
		if p.allUnused && now.Sub(s.detected) < p.minAge {
			return 1
		}
		return 0
	}
	slices.SortFunc(free, func(a, b storedImage) int {
		return cmp.Or(young(a)-young(b), a.lastUsed.Compare(b.lastUsed), a.detected.Compare(b.detected),
			cmp.Compare(b.size, a.size), cmp.Compare(a.id, b.id))
	})
	need := p.bytesToFree(d)
	for _, s := range free {
		var message string
		reason := ReasonSpace
		switch unused := now.Sub(s.lastUsed); {
		case p.allUnused:
			message = "the image is not in use and the node needs disk space"
		case p.maxAge > 0 && unused > p.maxAge:
			reason, message = ReasonAge, fmt.Sprintf("the image has been unused for %s", unused.Round(time.Second))
		case need > 0 && now.Sub(s.detected) >= p.minAge:
			message = fmt.Sprintf("the disk is %d%% full", d.percent())
		default:
			continue
		}
		remove = append(remove, imageRemoval{s, reason, message})
		need -= min(need, s.size)
	}
	return remove, need
}

// bytesToFree returns how many bytes must be freed.
func (p gcPolicy) bytesToFree(d diskUsage) uint64 {
	if p.high >= 100 || d.capacity == 0 || d.percent() < p.high {
		return 0
	}
	return p.bytesAboveLow(d)
}

// bytesAboveLow returns how many bytes are in use above the low threshold.
func (p gcPolicy) bytesAboveLow(d diskUsage) uint64 {
	low := uint64(float64(d.capacity) * float64(p.low) / 100)
	return d.used - min(d.used, low)
}
