package images

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// stored is an image on the node as the choice of what to remove sees it.
type stored struct {
	id     string
	names  []string // tags and digests
	size   uint64
	pinned string    // why it stays whether or not it is used; empty: it may go
	inUse  bool      // by a container or a pod
	seen   time.Time // when it came onto the node; zero: before anybody looked
	used   time.Time // when it was last used, or first seen
}

// policy says when images are removed.
type policy struct {
	high, low      int           // percent of the disk in use: from high on images go until low is reached; 100: never
	minAge, maxAge time.Duration // no younger one is removed for space; one unused for longer goes anyhow (0: never)
	everything     bool          // all that is not needed, for a node in need of space: those below minAge last
}

// disk is the file system of the images, in bytes.
type disk struct{ used, capacity uint64 }

func (d disk) percent() int {
	if d.capacity == 0 {
		return 0
	}
	return int(float64(d.used) / float64(d.capacity) * 100)
}

// removal is an image to remove and why.
type removal struct {
	stored
	reason RemovalReason
	why    string // in words
}

// RemovalReason is why an image is removed, in upstream's words.
type RemovalReason string

// The reasons.
const (
	ReasonAge   RemovalReason = "age"   // nobody has used it for too long
	ReasonSpace RemovalReason = "space" // its disk is too full
)

// choose picks what to remove, in order: what nobody has used for too long, then,
// when the disk is too full, the least recently used until enough is freed.
// short is how many bytes are still missing after that. It removes nothing that
// is in use or pinned.
func choose(now time.Time, images []stored, p policy, d disk) (remove []removal, short uint64) {
	free := slices.DeleteFunc(slices.Clone(images), func(s stored) bool { return s.inUse || s.pinned != "" })
	young := func(s stored) int {
		if p.everything && now.Sub(s.seen) < p.minAge {
			return 1
		}
		return 0
	}
	slices.SortFunc(free, func(a, b stored) int {
		return cmp.Or(young(a)-young(b), a.used.Compare(b.used), a.seen.Compare(b.seen), cmp.Compare(b.size, a.size), cmp.Compare(a.id, b.id))
	})
	need := p.need(d)
	for _, s := range free {
		var why string
		reason := ReasonSpace
		switch unused := now.Sub(s.used); {
		case p.everything:
			why = "it is not in use and the node needs space"
		case p.maxAge > 0 && unused > p.maxAge:
			reason, why = ReasonAge, fmt.Sprintf("nobody has used it for %s", unused.Round(time.Second))
		case need > 0 && now.Sub(s.seen) >= p.minAge:
			why = fmt.Sprintf("the disk is %d%% full", d.percent())
		default:
			continue
		}
		remove = append(remove, removal{s, reason, why})
		need -= min(need, s.size)
	}
	return remove, need
}

// need is how many bytes must be freed.
func (p policy) need(d disk) uint64 {
	if p.high >= 100 || d.capacity == 0 || d.percent() < p.high {
		return 0
	}
	return p.above(d)
}

// above is how many bytes are in use beyond the low threshold.
func (p policy) above(d disk) uint64 {
	low := uint64(float64(d.capacity) * float64(p.low) / 100)
	return d.used - min(d.used, low)
}
