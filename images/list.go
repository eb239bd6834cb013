package images

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageInfo is an image of the node for users.
type ImageInfo struct {
	ID     string
	Names  []string // tags and digests
	Size   uint64
	Pinned string // why it is kept even if unused; empty: it may be removed
	InUse  bool   // by a pod or a container
}

// List returns the images of the node, sorted by repository.
func (m *Manager) List(ctx context.Context, o GCOptions) ([]ImageInfo, error) {
	all, err := m.listStored(ctx, o)
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

// LargestImages returns the largest images of the node, at most that many (-1: all), each with at
// most five of its names, for the node status.
func (m *Manager) LargestImages(ctx context.Context, most int) ([]corev1.ContainerImage, error) {
	resp, err := m.service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	const names = 5
	var out []corev1.ContainerImage
	for _, img := range resp.GetImages() {
		all := slices.Concat(img.GetRepoDigests(), img.GetRepoTags())
		if len(all) > 0 {
			out = append(out, corev1.ContainerImage{Names: all[:min(len(all), names)], SizeBytes: int64(img.GetSize())})
		}
	}
	slices.SortFunc(out, func(a, b corev1.ContainerImage) int {
		return cmp.Or(cmp.Compare(b.SizeBytes, a.SizeBytes), cmp.Compare(a.Names[0], b.Names[0]))
	})
	if most >= 0 && len(out) > most {
		out = out[:most]
	}
	return out, nil
}
