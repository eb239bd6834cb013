package pressure

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/podspec"
)

// LimitExceeded is a limit of ephemeral-storage that a pod has exceeded.
type LimitExceeded struct {
	Signal  string // as the kubelet's metrics name it
	Message string // for the pod's owner, in upstream's words
}

// ExceededLimit finds the limit that a pod exceeds with what it has on the disk; nil:
// none. First the pod's: what all its containers may write together, against their
// file systems and logs and the pod's volumes; then each container's own, against
// its file system and its logs. Of several instances of a container the newest
// counts, which comes first in u.
func ExceededLimit(pod *corev1.Pod, u Usage) *LimitExceeded {
	newest := map[string]ContainerUsage{}
	total := u.Volumes.Bytes // logs are in it
	for _, c := range u.Containers {
		if _, older := newest[c.Name]; !older {
			newest[c.Name] = c
			total += c.Layer
		}
	}
	if limit, ok := podspec.EphemeralStorageLimit(pod); ok && total > limit.Value() {
		return &LimitExceeded{"ephemeralpodfs.limit", fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())}
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			limit, ok := list[i].Resources.Limits[corev1.ResourceEphemeralStorage]
			if ok && !limit.IsZero() && newest[list[i].Name].Disk > limit.Value() {
				return &LimitExceeded{"ephemeralcontainerfs.limit", fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", list[i].Name, limit.String())}
			}
		}
	}
	return nil
}
