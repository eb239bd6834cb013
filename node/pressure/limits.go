package pressure

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// LimitExceeded is an ephemeral-storage limit that a pod has exceeded.
type LimitExceeded struct {
	Signal  string // as in the kubelet's metrics
	Message string // upstream's eviction message
}

// ExceededLimit returns the limit that a pod's disk usage exceeds, or nil. It first checks the
// limit of the pod, which applies to the sum of the writable layers, logs and volumes, and then the
// limit of each container, which applies to its writable layer and logs. Of several instances of a
// container only the newest counts, which is the first in u.
func ExceededLimit(pod *corev1.Pod, u Usage) *LimitExceeded {
	newest := map[string]ContainerUsage{}
	total := u.Volumes.Bytes // including logs
	for _, c := range u.Containers {
		if _, older := newest[c.Name]; !older {
			newest[c.Name] = c
			total += c.Layer
		}
	}
	if limit, ok := podspec.EphemeralStorageLimit(pod); ok && total > limit.Value() {
		return &LimitExceeded{
			"ephemeralpodfs.limit",
			fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String()),
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			limit, ok := list[i].Resources.Limits[corev1.ResourceEphemeralStorage]
			if ok && !limit.IsZero() && newest[list[i].Name].Disk > limit.Value() {
				return &LimitExceeded{
					"ephemeralcontainerfs.limit",
					fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", list[i].Name,
						limit.String()),
				}
			}
		}
	}
	return nil
}

// PullBudget evaluates the image file system. keep is the number of bytes that hard thresholds
// require to be free: an image pull that used them would cause evictions. low is the most urgent
// threshold that is met, in which case no image should be pulled, or nil.
func (c Config) PullBudget(levels map[Signal]Level) (keep int64, low *ThresholdMet) {
	for _, t := range slices.SortedFunc(slices.Values(c.Thresholds), compareUrgency) {
		level, read := levels[t.Signal]
		if !read {
			continue
		}
		m := ThresholdMet{Threshold: t, Level: level, Minimum: t.value(level.Capacity, false)}
		if t.Hard && t.Signal.Resource() != Inodes {
			keep = max(keep, m.Minimum)
		}
		if level.Available < m.Minimum && low == nil {
			low = &m
		}
	}
	return keep, low
}
