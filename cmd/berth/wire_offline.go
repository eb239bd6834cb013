package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"berth/agent/plan"
	"berth/cri"
	"berth/images/offline"
	"berth/nodeapi"
)

// importRecords is what was imported from which archive, in the state directory.
const importRecords = "images.json"

// newOffline brings the images of archives in a folder onto the node.
func (b *berth) newOffline() *offline.Importer {
	return offline.New(offline.Options{
		Dir: b.config.Images.ArchiveDir, Records: filepath.Join(b.config.StateDir, importRecords), Runtime: importer{b.runtime.client}, Log: b.log,
		OnImported: func(file string, list []offline.Image) {
			for _, img := range list {
				b.log.Info("image imported", "file", file, "image", img.Name, "id", img.ID)
			}
			b.agent.ImagesImported()
		},
		OnFailed: func(file string, err error) {
			b.warnOfNode("ImageImportFailed", fmt.Sprintf("Images of %s cannot be imported: %v", file, err))
		},
		IsTransient: func(err error) bool {
			switch plan.KindOf(err) {
			case plan.Unavailable, plan.Timeout, plan.Canceled, plan.NoSpace:
				return true
			default:
				return false
			}
		},
	})
}

// makeImageFolder has the folder of archives there when the agent answers: who waits
// for that may put one into it at once.
func (b *berth) makeImageFolder() {
	if err := os.MkdirAll(b.config.Images.ArchiveDir, 0o755); err != nil {
		b.log.Debug("folder of images", "err", err) // it is tried again, and said then
	}
}

// importer is the runtime as archives need it.
type importer struct{ *cri.Client }

func (i importer) Import(ctx context.Context, id string) (offline.Import, error) {
	in, err := i.Client.Import(ctx, id)
	if err != nil {
		return nil, err
	}
	return in, nil
}

// listImages tells which images are here, why they stay, and what the archives have.
func (b *berth) listImages(ctx context.Context) (out nodeapi.Images, err error) {
	list, err := b.runtime.images.List(ctx, b.imageGarbage(ctx))
	if err != nil {
		return out, err
	}
	out.Images = []nodeapi.Image{}
	for _, img := range list {
		out.Images = append(out.Images, nodeapi.Image{ID: img.ID, Names: img.Names, Size: img.Size, Pinned: img.Pinned, InUse: img.InUse})
	}
	for _, f := range b.offline.Files() {
		a := nodeapi.Archive{Path: f.Path, State: string(f.State), Message: f.Message}
		for _, img := range f.Images {
			a.Images = append(a.Images, img.Name)
		}
		out.Archives = append(out.Archives, a)
	}
	return out, nil
}
