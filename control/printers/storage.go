package printers

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var storageKinds = map[schema.GroupKind]Columns{
	core("PersistentVolume"): of(volumeRow, nameHead, text("Capacity", "The size."), text("Access Modes", "How it can be mounted."),
		text("Reclaim Policy", "What becomes of it when it is released."), text("Status", "Whether it is bound."),
		text("Claim", "The claim that it is bound to."), text("StorageClass", "Its class."),
		text("VolumeAttributesClass", "Its class of attributes."), text("Reason", "Why it is as it is."), ageHead,
		wide(text("VolumeMode", "File system or block device."))),
	core("PersistentVolumeClaim"): of(claimRow, nameHead, text("Status", "Whether it is bound."), text("Volume", "The volume that it is bound to."),
		text("Capacity", "The size."), text("Access Modes", "How it can be mounted."), text("StorageClass", "Its class."),
		text("VolumeAttributesClass", "Its class of attributes."), ageHead, wide(text("VolumeMode", "File system or block device."))),
}

func volumeRow(v *corev1.PersistentVolume, now time.Time) []any {
	claim := ""
	if r := v.Spec.ClaimRef; r != nil {
		claim = r.Namespace + "/" + r.Name
	}
	status := string(v.Status.Phase)
	if v.DeletionTimestamp != nil {
		status = "Terminating"
	}
	class := v.Spec.StorageClassName
	if old, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		class = old
	}
	return []any{v.Name, sizeOf(v.Spec.Capacity), modes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), status, claim,
		class, value(v.Spec.VolumeAttributesClassName, unset), v.Status.Reason, since(v.CreationTimestamp, now), value(v.Spec.VolumeMode, unset)}
}

func claimRow(c *corev1.PersistentVolumeClaim, now time.Time) []any {
	status := string(c.Status.Phase)
	if c.DeletionTimestamp != nil {
		status = "Terminating"
	}
	size, how := "", ""
	if c.Spec.VolumeName != "" {
		size, how = sizeOf(c.Status.Capacity), modes(c.Status.AccessModes)
	}
	class := ""
	if c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	if old, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		class = old
	}
	return []any{c.Name, status, c.Spec.VolumeName, size, how, class, value(c.Spec.VolumeAttributesClassName, unset),
		since(c.CreationTimestamp, now), value(c.Spec.VolumeMode, unset)}
}

func sizeOf(list corev1.ResourceList) string {
	size, ok := list[corev1.ResourceStorage]
	if !ok {
		return ""
	}
	return size.String()
}

// modes writes access modes short, each once, in the order that all know.
func modes(list []corev1.PersistentVolumeAccessMode) string {
	has := map[corev1.PersistentVolumeAccessMode]bool{}
	for _, m := range list {
		has[m] = true
	}
	var out []string
	for _, m := range []struct {
		mode corev1.PersistentVolumeAccessMode
		word string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		if has[m.mode] {
			out = append(out, m.word)
		}
	}
	return strings.Join(out, ",")
}
