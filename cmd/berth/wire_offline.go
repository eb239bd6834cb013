package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"berth/agent/plan"
	"berth/cri"
	"berth/images"
	"berth/images/offline"
	"berth/internal/nodeconfig"
	"berth/nodeapi"
)

// newOffline creates the import of image archives.
func (b *berth) newOffline() *offline.Importer {
	return offline.New(offline.Options{
		Dir: b.config.Images.ArchiveDir, Records: filepath.Join(b.config.StateDir, nodeconfig.ImportRecordsFile),
		Runtime: importer{b.runtime.client}, Log: b.log,
		OnImported: func(string, []offline.Image) { b.agent.ImagesImported() },
		OnFailed: func(file string, err error) {
			b.warnNode("ImageImportFailed", fmt.Sprintf("Failed to import images of %s: %v", file, err))
		},
		IsTransient: plan.IsTransient,
	})
}

// makeArchiveDir creates the archive directory before the agent serves requests, so that clients
// can add archives immediately.
func (b *berth) makeArchiveDir() {
	if err := os.MkdirAll(b.config.Images.ArchiveDir, 0o755); err != nil {
		b.log.Debug("create image archive directory failed", "err", err) // retried and reported by the import
	}
}

// importer adapts the runtime for archives.
type importer struct{ *cri.Client }

func (i importer) Import(ctx context.Context, id string) (offline.Import, error) {
	in, err := i.Client.Import(ctx, id)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// listImages returns the images on the node, why they are kept, and the state of the archives.
func (b *berth) listImages(ctx context.Context) (out nodeapi.Images, err error) {
	list, err := b.runtime.images.List(ctx, b.imageGarbage(ctx))
	if err != nil {
		return out, err
	}
	out.Images = convertAll(list, func(i images.ImageInfo) nodeapi.Image {
		return nodeapi.Image{ID: i.ID, Names: i.Names, Size: i.Size, Pinned: i.Pinned, InUse: i.InUse}
	})
	out.Archives = convertAll(b.offline.Files(), func(f offline.File) nodeapi.Archive {
		return nodeapi.Archive{
			Path: f.Path, State: string(f.State), Message: f.Message,
			Images: convertAll(f.Images, func(i offline.Image) string { return i.Name }),
		}
	})
	return out, nil
}
