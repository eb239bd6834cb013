package images

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// Timeouts of the runtime calls of a collection, and the default interval.
const (
	listTimeout   = 2 * time.Minute
	removeTimeout = 2 * time.Minute
	defaultEvery  = 5 * time.Minute
)

// GCOptions configures the image garbage collection.
type GCOptions struct {
	// disk usage at which images are removed until LowThresholdPercent is reached; 100: never
	HighThresholdPercent, LowThresholdPercent int
	MinAge                                    time.Duration // minimum age of an image that is removed to free space
	// unused images are removed at this age regardless of the disk usage; 0: never
	MaxAge   time.Duration
	Interval time.Duration // between two runs of RunGC; 0: 5 minutes
	// images to keep: the sandbox image of a runtime that does not pin it
	KeepNames []string

	// KeepPreloaded keeps the images that this node did not pull: it might be impossible to load
	// them again.
	KeepPreloaded bool

	// Pinned returns the images to keep for other reasons: the reason by image ID. May be nil.
	Pinned func() map[string]string

	// PodsKnown reports whether InUse knows all pods of the node. Until then, RunGC removes nothing. May be nil.
	PodsKnown func() bool

	InUse func() map[string]bool // image IDs, digests or names that pods and containers use
	// InUseByOthers returns the images of containers of other owners. After an error, no image is
	// removed. May be nil.
	InUseByOthers func(context.Context) (map[string]bool, error)
	Usage         func() (used, capacity uint64, err error) // of the image file system, in bytes; nil: Manager.Usage
	OnCollected   func(c GCResult, err error)               // called after each run of RunGC; may be nil
}

// validate reports an invalid configuration.
func (o GCOptions) validate() error {
	switch {
	case o.HighThresholdPercent < 0 || o.HighThresholdPercent > 100:
		return fmt.Errorf("image GC: high threshold %d%% is not between 0 and 100", o.HighThresholdPercent)
	case o.LowThresholdPercent < 0 || o.LowThresholdPercent > o.HighThresholdPercent:
		return fmt.Errorf("image GC: low threshold %d%% is not between 0 and the high threshold %d%%",
			o.LowThresholdPercent, o.HighThresholdPercent)
	case o.MinAge < 0 || o.MaxAge < 0:
		return errors.New("image GC: an age is negative")
	case o.MaxAge > 0 && o.MaxAge < o.MinAge:
		return fmt.Errorf("image GC: maximum age %s is below minimum age %s", o.MaxAge, o.MinAge)
	}
	return nil
}

// GCResult is the result of a garbage collection.
type GCResult struct {
	Removed   []Removed
	Freed     uint64 // bytes, as the runtime counts images: shared layers count more than once
	Needed    uint64 // bytes to free according to the thresholds
	Shortfall uint64 // part of Needed for which no image could be removed
}

// Removed is a removed image.
type Removed struct {
	ID      string
	Names   []string
	Size    uint64
	Reason  RemovalReason
	Message string // reason for users
}

// Report logs the removed images and counts each by its reason.
func (c GCResult) Report(log *slog.Logger, count func(reason string)) {
	for _, r := range c.Removed {
		count(string(r.Reason))
		log.Info("image removed", "image", r.Names, "imageID", r.ID, "bytes", r.Size, "reason", r.Message)
	}
}

// ShortfallMessage describes a shortfall in the words of the kubelet.
func (c GCResult) ShortfallMessage() string {
	return fmt.Sprintf("Failed to garbage collect required amount of images. Attempted to free %d bytes, but only "+
		"found %d bytes eligible to free.", c.Needed, c.Needed-min(c.Needed, c.Shortfall))
}

// imageUsage is what the agent knows about an image in addition to the runtime.
type imageUsage struct{ detected, lastUsed time.Time }

// use records that an image is used now.
func (m *Manager) use(img plan.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.usage[img.ID]
	if !ok {
		r.detected = m.now()
	}
	r.lastUsed = m.now()
	m.usage[img.ID] = r
}

// RunGC collects every o.Interval until ctx ends, while the pods of the node are known. The first collection is a
// full interval after the start.
func (m *Manager) RunGC(ctx context.Context, o GCOptions) {
	every := o.Interval
	if every <= 0 {
		every = defaultEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	// List the images once, so that ages count from now. An error occurs again in the first run.
	_, _ = m.listStored(ctx, o)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if o.PodsKnown != nil && !o.PodsKnown() {
			continue
		}
		c, err := m.CollectGarbage(ctx, o)
		if o.OnCollected != nil && ctx.Err() == nil {
			o.OnCollected(c, err)
		}
	}
}

// CollectGarbage runs one collection immediately.
func (m *Manager) CollectGarbage(ctx context.Context, o GCOptions) (GCResult, error) {
	if err := o.validate(); err != nil {
		return GCResult{}, err
	}
	usage := o.Usage
	if usage == nil {
		usage = func() (uint64, uint64, error) { return m.Usage(ctx) }
	}
	used, capacity, err := usage()
	if err != nil {
		return GCResult{}, fmt.Errorf("image GC: get disk usage: %w", err)
	}
	p := gcPolicy{high: o.HighThresholdPercent, low: o.LowThresholdPercent, minAge: o.MinAge, maxAge: o.MaxAge}
	// The disk usage of an image differs from the size that the runtime reports: it is larger for
	// packed plus unpacked content and smaller for shared layers. So the freed space is measured.
	enough := func() bool {
		used, capacity, err := usage()
		return err == nil && p.bytesAboveLow(diskUsage{used, capacity}) == 0
	}
	return m.collect(ctx, o, p, diskUsage{used, capacity}, enough)
}

func (m *Manager) collect(ctx context.Context, o GCOptions, p gcPolicy, d diskUsage,
	enough func() bool) (GCResult, error) {
	images, err := m.listStored(ctx, o)
	if err != nil {
		return GCResult{}, fmt.Errorf("image GC: list images: %w", err)
	}
	remove, short := selectRemovals(m.now(), images, p, d)
	done := GCResult{Needed: p.bytesToFree(d), Shortfall: short}
	var errs []error
	for at, r := range remove {
		if m.usedSince(r.id, r.lastUsed) {
			continue // used since it was selected
		}
		if at > 0 && r.reason == ReasonSpace && enough() {
			done.Shortfall = 0
			continue
		}
		if err := m.remove(ctx, r.id); err != nil {
			errs = append(errs, fmt.Errorf("image GC: remove image %s %v: %w", r.id, r.names, err))
			continue
		}
		done.Removed = append(done.Removed, Removed{ID: r.id, Names: r.names, Size: r.size, Reason: r.reason,
			Message: r.message})
		done.Freed += r.size
	}
	return done, errors.Join(errs...)
}

func (m *Manager) remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	_, err := m.service.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id}})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.usage, id) // even after an error, because the image may have been removed
	return err
}

func (m *Manager) usedSince(id string, t time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.usage[id]
	return ok && r.lastUsed.After(t)
}

// listStored lists the images of the node and updates the usage records.
func (m *Manager) listStored(ctx context.Context, o GCOptions) ([]storedImage, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	startedAt := m.now()
	resp, err := m.service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	keep, inUse, pinned := nameSet(slices.Values(o.KeepNames)), map[string]bool{}, map[string]string{}
	if o.Pinned != nil {
		pinned = o.Pinned()
	}
	if o.InUse != nil {
		inUse = nameSet(trueKeys(o.InUse()))
	}
	if o.InUseByOthers != nil {
		foreign, err := o.InUseByOthers(ctx)
		if err != nil {
			return nil, fmt.Errorf("list images of other containers: %w", err)
		}
		maps.Copy(inUse, nameSet(trueKeys(foreign)))
	}
	left := make([]storedImage, 0, len(resp.GetImages()))
	for _, img := range resp.GetImages() {
		left = append(left, storedImage{id: img.GetId(), names: slices.Concat(img.GetRepoTags(), img.GetRepoDigests()),
			size: img.GetSize()})
	}
	m.records.prune(left, startedAt)
	// This comes after InUse, so images that were used since then have a usage record.
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	records := make(map[string]imageUsage, len(resp.GetImages()))
	for at := range left {
		s := &left[at]
		s.pinned = m.pinReason(*s, resp.GetImages()[at].GetPinned(), pinned, keep, o.KeepPreloaded)
		s.inUse = contains(*s, inUse)
		r, known := m.usage[s.id]
		if !known {
			r.lastUsed = now
			if m.listed {
				r.detected = now
			}
		}
		if s.inUse {
			r.lastUsed = now
		}
		s.detected, s.lastUsed = r.detected, r.lastUsed
		records[s.id] = r
	}
	for id, r := range m.usage {
		if _, listed := records[id]; !listed && !r.lastUsed.Before(startedAt) {
			records[id] = r // pulled while the runtime was listing
		}
	}
	m.usage, m.listed = records, true
	return left, nil
}

// pinReason returns why an image is kept. Empty: it may be removed when it is unused.
func (m *Manager) pinReason(s storedImage, byRuntime bool, pinned map[string]string, keep map[string]bool,
	brought bool) string {
	switch {
	case pinned[s.id] != "":
		return pinned[s.id]
	case byRuntime:
		return "by the runtime"
	case contains(s, keep):
		return "as the sandbox image"
	case brought && !m.records.wasPulled(s.id):
		return "not pulled by this node"
	}
	return ""
}

// contains reports whether the set has the image by its ID or any of its names.
func contains(s storedImage, set map[string]bool) bool {
	return set[s.id] || slices.ContainsFunc(s.names, func(n string) bool { return set[n] })
}

// trueKeys yields the keys whose value is true.
func trueKeys(m map[string]bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k, in := range m {
			if in && !yield(k) {
				return
			}
		}
	}
}

// nameSet returns a set of IDs and image names that includes the full form of the names.
func nameSet(all iter.Seq[string]) map[string]bool {
	set := map[string]bool{}
	for s := range all {
		set[s] = true
		if n, err := podspec.ParseImageName(s); err == nil {
			set[n.String()] = true
		}
	}
	return set
}

// Usage returns the usage and capacity of the runtime's image file system in bytes.
func (m *Manager) Usage(ctx context.Context) (used, capacity uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	resp, err := m.service.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return 0, 0, fmt.Errorf("get image file system info: %w", err)
	}
	if len(resp.GetImageFilesystems()) == 0 {
		return 0, 0, errors.New("the runtime reports no image file system")
	}
	dir := resp.GetImageFilesystems()[0].GetFsId().GetMountpoint()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("get usage of the image file system %s: %w", dir, err)
	}
	capacity = st.Blocks * uint64(st.Bsize)
	// Space reserved for root counts as used.
	available := st.Bavail * uint64(st.Bsize)
	return capacity - min(capacity, available), capacity, nil
}
