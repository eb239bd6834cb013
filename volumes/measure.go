package volumes

import (
	"context"
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
)

// VolumeUsage is what a volume holds, in allocated blocks.
type VolumeUsage struct {
	Volume        string
	Dir           string // on the host
	Bytes, Inodes uint64
}

// Usage walks through the pod's volumes that are set up. A hostPath is not the
// pod's own and left out; so is what cannot be measured, of which the error tells.
func (v *Volumes) Usage(ctx context.Context, pod *corev1.Pod) (all []VolumeUsage, err error) {
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		k, unknown := kindOf(vol)
		if unknown != nil || k == hostPath || checkNames(string(pod.UID), vol.Name) != nil {
			continue
		}
		if _, ok := v.setUp(pod.UID, k, vol.Name); !ok {
			continue
		}
		dir := v.volumeDir(pod.UID, k, vol.Name)
		u, failed := walkBelow(ctx, dir, math.MaxInt64)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("measure volume %s: %w", vol.Name, failed))
			continue
		}
		all = append(all, VolumeUsage{Volume: vol.Name, Dir: dir, Bytes: uint64(u.used), Inodes: uint64(math.Round(u.inodes))})
	}
	return all, err
}
