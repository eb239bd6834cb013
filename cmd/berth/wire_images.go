package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"berth/images"
)

// collectImages runs image garbage collection until ctx ends.
func (b *berth) collectImages(ctx context.Context) {
	o := b.imageGarbage(ctx)
	o.OnCollected = b.imagesCollected
	b.runtime.images.RunGC(ctx, o)
}

// imagesCollected reports the result of a garbage collection.
func (b *berth) imagesCollected(c images.GCResult, err error) {
	c.Report(b.log, b.metrics.CountImageGarbageCollected)
	if err != nil {
		b.warnNode("ImageGCFailed", err.Error())
	}
	if c.Shortfall > 0 {
		b.warnNode("FreeDiskSpaceFailed", c.ShortfallMessage())
	}
}

// warnNode logs a warning and, in a cluster, records it as an event of the node.
func (b *berth) warnNode(reason, message string) {
	b.log.Warn("event occurred", "node", b.config.NodeName, "reason", reason, "message", message)
	if b.cluster != nil {
		b.cluster.events.RecordNodeEvent(corev1.EventTypeWarning, reason, message)
	}
}

// imageGarbage returns the garbage collection options.
func (b *berth) imageGarbage(ctx context.Context) images.GCOptions {
	c := b.config.Images
	return images.GCOptions{
		HighThresholdPercent: c.HighThresholdPercent, LowThresholdPercent: c.LowThresholdPercent,
		MinAge: c.MinimumGCAge, MaxAge: c.MaximumGCAge, Interval: c.GCPeriod,
		KeepNames: b.runtime.client.SandboxImages(ctx), KeepPreloaded: true, Pinned: b.offline.Pinned,
		PodsKnown: b.agent.HasSynced, InUse: b.agent.StatusCache.ImagesInUse,
		InUseByOthers: b.runtime.client.ForeignImages,
	}
}

// imageSpace returns the available space for image pulls.
func (b *berth) imageSpace() (images.DiskSpace, bool) {
	s, known := b.fileSystems.PullBudget(b.pressure.Config)
	return images.DiskSpace(s), known
}

// freeSpaceForPull removes unused images until a pull has enough space. Before all desired pods are
// known, nothing is removed, because usage is not known.
func (b *berth) freeSpaceForPull(ctx context.Context, enough func() bool) {
	if !b.agent.HasSynced() {
		return
	}
	c, err := b.runtime.images.FreeSpace(ctx, b.imageGarbage(ctx), enough)
	if ctx.Err() == nil {
		b.imagesCollected(c, err)
	}
}
