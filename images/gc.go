package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Bounds of the runtime's calls while collecting, and how often it is done.
const (
	listTimeout   = 2 * time.Minute
	removeTimeout = 2 * time.Minute
	defaultEvery  = 5 * time.Minute
)

// GCOptions says which images are removed when nobody needs them.
type GCOptions struct {
	HighThresholdPercent, LowThresholdPercent int           // percent of the disk in use: at High images go until Low is reached; High 100: never
	MinAge                                    time.Duration // on the node for at least that long before it goes for space
	MaxAge                                    time.Duration // goes when unused for longer, whatever the disk; 0: never
	Interval                                  time.Duration // time between two rounds of RunGC; 0: 5 minutes
	KeepNames                                 []string      // names that stay: the sandbox image of a runtime that does not pin it

	// KeepPreloaded keeps what this node has not pulled itself: nobody might be able to
	// bring it again.
	KeepPreloaded bool

	// Pinned are those that stay for a reason of their own, by ID: why. Nil: none.
	Pinned func() map[string]string

	InUse       func() map[string]bool                    // image IDs, digests or names that pods and containers use
	Usage       func() (used, capacity uint64, err error) // of the images' disk, in bytes; nil: Images.Usage
	OnCollected func(c GCResult, err error)               // told after each round of RunGC; nil: told nobody
}

// validate reports a policy that makes no sense.
func (o GCOptions) validate() error {
	switch {
	case o.HighThresholdPercent < 0 || o.HighThresholdPercent > 100:
		return fmt.Errorf("image GC: high threshold %d%% is not between 0 and 100", o.HighThresholdPercent)
	case o.LowThresholdPercent < 0 || o.LowThresholdPercent > o.HighThresholdPercent:
		return fmt.Errorf("image GC: low threshold %d%% is not between 0 and the high threshold %d%%", o.LowThresholdPercent, o.HighThresholdPercent)
	case o.MinAge < 0 || o.MaxAge < 0:
		return errors.New("image GC: an age is negative")
	case o.MaxAge > 0 && o.MaxAge < o.MinAge:
		return fmt.Errorf("image GC: maximum age %s is below minimum age %s", o.MaxAge, o.MinAge)
	}
	return nil
}

// GCResult is what one round of collection has done.
type GCResult struct {
	Removed   []Removed
	Freed     uint64 // bytes, as the runtime counts images: shared layers count more than once
	Needed    uint64 // bytes that should have been freed for the thresholds
	Shortfall uint64 // those of them that nothing could be found for
}

// Removed is one image that was removed.
type Removed struct {
	ID      string
	Names   []string
	Size    uint64
	Reason  RemovalReason
	Message string // in words
}

// record is what the agent knows of one image beside what the runtime tells.
type record struct{ seen, used time.Time }

// use notes that an image is used now.
func (i *Manager) use(img plan.Image) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, ok := i.records[img.ID]
	if !ok {
		r.seen = i.now()
	}
	r.used = i.now()
	i.records[img.ID] = r
}

// RunGC collects every o.Every until ctx ends. The first round is a full
// interval after the start: until then the pods of this node may not be known
// yet.
func (i *Manager) RunGC(ctx context.Context, o GCOptions) {
	every := o.Interval
	if every <= 0 {
		every = defaultEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	// A first look, so that ages count from now on. What goes wrong here comes
	// up again in the first round.
	_, _ = i.stored(ctx, o)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c, err := i.CollectGarbage(ctx, o)
		if o.OnCollected != nil && ctx.Err() == nil {
			o.OnCollected(c, err)
		}
	}
}

// CollectGarbage does one round now.
func (i *Manager) CollectGarbage(ctx context.Context, o GCOptions) (GCResult, error) {
	if err := o.validate(); err != nil {
		return GCResult{}, err
	}
	usage := o.Usage
	if usage == nil {
		usage = func() (uint64, uint64, error) { return i.Usage(ctx) }
	}
	used, capacity, err := usage()
	if err != nil {
		return GCResult{}, fmt.Errorf("image GC: usage of the disk: %w", err)
	}
	p := policy{high: o.HighThresholdPercent, low: o.LowThresholdPercent, minAge: o.MinAge, maxAge: o.MaxAge}
	// An image takes more of the disk than the runtime counts, once packed and once
	// unpacked, and less where it shares layers: what is freed is measured.
	enough := func() bool {
		used, capacity, err := usage()
		return err == nil && p.above(disk{used, capacity}) == 0
	}
	return i.collect(ctx, o, p, disk{used, capacity}, enough)
}

func (i *Manager) collect(ctx context.Context, o GCOptions, p policy, d disk, enough func() bool) (GCResult, error) {
	images, err := i.stored(ctx, o)
	if err != nil {
		return GCResult{}, fmt.Errorf("image GC: list images: %w", err)
	}
	remove, short := choose(i.now(), images, p, d)
	done := GCResult{Needed: p.need(d), Shortfall: short}
	var errs []error
	for at, r := range remove {
		if i.usedSince(r.id, r.used) {
			continue // somebody came for it meanwhile
		}
		if at > 0 && r.reason == ReasonSpace && enough() {
			done.Shortfall = 0
			continue
		}
		if err := i.remove(ctx, r.id); err != nil {
			errs = append(errs, fmt.Errorf("image GC: remove image %s %v: %w", r.id, r.names, err))
			continue
		}
		done.Removed = append(done.Removed, Removed{ID: r.id, Names: r.names, Size: r.size, Reason: r.reason, Message: r.why})
		done.Freed += r.size
	}
	return done, errors.Join(errs...)
}

func (i *Manager) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	_, err := i.service.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.records, id) // also after an error: it may have been removed
	return err
}

func (i *Manager) usedSince(id string, t time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, ok := i.records[id]
	return ok && r.used.After(t)
}

// stored lists the images of the node and brings the records up to date.
func (i *Manager) stored(ctx context.Context, o GCOptions) ([]stored, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	began := i.now()
	resp, err := i.service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	keep, inUse, pinned := names(slices.Values(o.KeepNames)), map[string]bool{}, map[string]string{}
	if o.Pinned != nil {
		pinned = o.Pinned()
	}
	if o.InUse != nil {
		inUse = names(used(o.InUse()))
	}
	left := make([]stored, 0, len(resp.GetImages()))
	for _, img := range resp.GetImages() {
		left = append(left, stored{id: img.GetId(), names: slices.Concat(img.GetRepoTags(), img.GetRepoDigests()), size: img.GetSize()})
	}
	i.pullLog.prune(left, began)
	// After InUse: what came into use since then has a record.
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.now()
	records := make(map[string]record, len(resp.GetImages()))
	for at := range left {
		s := &left[at]
		s.pinned = i.pin(*s, resp.GetImages()[at].GetPinned(), pinned, keep, o.KeepPreloaded)
		s.inUse = anyOf(*s, inUse)
		r, known := i.records[s.id]
		if !known {
			r.used = now
			if i.looked {
				r.seen = now
			}
		}
		if s.inUse {
			r.used = now
		}
		s.seen, s.used = r.seen, r.used
		records[s.id] = r
	}
	for id, r := range i.records {
		if _, listed := records[id]; !listed && !r.used.Before(began) {
			records[id] = r // pulled while the runtime made its list
		}
	}
	i.records, i.looked = records, true
	return left, nil
}

// pin tells why an image stays; empty: it may go when nobody uses it.
func (i *Manager) pin(s stored, byRuntime bool, pinned map[string]string, keep map[string]bool, brought bool) string {
	switch {
	case pinned[s.id] != "":
		return pinned[s.id]
	case byRuntime:
		return "by the runtime"
	case anyOf(s, keep):
		return "the image of sandboxes"
	case brought && !i.pullLog.came(s.id):
		return "not pulled by this node"
	}
	return ""
}

// ImageInfo is an image of the node as users see it.
type ImageInfo struct {
	ID     string
	Names  []string // tags and digests
	Size   uint64
	Pinned string // why it stays when nobody uses it; empty: it may go
	InUse  bool   // by a pod or a container
}

// List lists the images of the node, those of one repository beside each other.
func (i *Manager) List(ctx context.Context, o GCOptions) ([]ImageInfo, error) {
	all, err := i.stored(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	out := make([]ImageInfo, 0, len(all))
	for _, s := range all {
		out = append(out, ImageInfo{ID: s.id, Names: s.names, Size: s.size, Pinned: s.pinned, InUse: s.inUse})
	}
	slices.SortFunc(out, func(a, b ImageInfo) int {
		return cmp.Or(slices.Compare(a.Names, b.Names), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// anyOf reports whether the set has the image by ID or by any of its names.
func anyOf(s stored, set map[string]bool) bool {
	return set[s.id] || slices.ContainsFunc(s.names, func(n string) bool { return set[n] })
}

// used lists the keys that are true.
func used(m map[string]bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k, in := range m {
			if in && !yield(k) {
				return
			}
		}
	}
}

// names is a set of IDs and image names, the names in their full form too.
func names(all iter.Seq[string]) map[string]bool {
	set := map[string]bool{}
	for s := range all {
		set[s] = true
		if n, err := podspec.ParseImageName(s); err == nil {
			set[n.String()] = true
		}
	}
	return set
}

// Usage asks how full the disk with the runtime's images is: bytes in use by
// anybody, and its size.
func (i *Manager) Usage(ctx context.Context) (used, capacity uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	resp, err := i.service.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return 0, 0, fmt.Errorf("ask the runtime for its image file system: %w", err)
	}
	if len(resp.GetImageFilesystems()) == 0 {
		return 0, 0, errors.New("the runtime names no image file system")
	}
	dir := resp.GetImageFilesystems()[0].GetFsId().GetMountpoint()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("look at the image file system %s: %w", dir, err)
	}
	capacity = st.Blocks * uint64(st.Bsize)
	// What only root may still use counts as used, as it does for everybody else.
	available := st.Bavail * uint64(st.Bsize)
	return capacity - min(capacity, available), capacity, nil
}
