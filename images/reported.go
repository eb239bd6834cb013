package images

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// LargestImages returns the biggest images of the node, at most that many (-1: all),
// each with at most five of its names, as a node tells them to its server.
func (i *Manager) LargestImages(ctx context.Context, most int) ([]corev1.ContainerImage, error) {
	resp, err := i.service.ListImages(ctx, &runtimeapi.ListImagesRequest{})
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
