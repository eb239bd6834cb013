package printers

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var storageKinds = map[schema.GroupKind]Columns{
	core("PersistentVolume"): columnsOf(
		volumeRow,
		nameColumn,
		stringColumn("Capacity", "Capacity of the volume."),
		stringColumn("Access Modes", "Ways the volume can be mounted."),
		stringColumn(
			"Reclaim Policy",
			"What happens when the volume is released.",
		),
		stringColumn("Status", "Phase of the volume."),
		stringColumn("Claim", "Bound claim."),
		stringColumn("StorageClass", "Storage class."),
		stringColumn(
			"VolumeAttributesClass",
			"Volume attributes class.",
		),
		stringColumn("Reason", "Reason of the status."),
		ageColumn,
		wideColumn(stringColumn("VolumeMode", "Filesystem or Block.")),
	),
	core("PersistentVolumeClaim"): columnsOf(
		claimRow,
		nameColumn,
		stringColumn("Status", "Phase of the volume."),
		stringColumn("Volume", "Bound volume."),
		stringColumn(
			"Capacity",
			"Capacity of the volume.",
		),
		stringColumn("Access Modes", "Ways the volume can be mounted."),
		stringColumn("StorageClass", "Storage class."),
		stringColumn(
			"VolumeAttributesClass",
			"Volume attributes class.",
		),
		ageColumn,
		wideColumn(stringColumn("VolumeMode", "Filesystem or Block.")),
	),
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
	return []any{
		v.Name,
		storageSize(v.Spec.Capacity),
		formatAccessModes(v.Spec.AccessModes),
		string(v.Spec.PersistentVolumeReclaimPolicy),
		status,
		claim,
		class,
		valueOr(v.Spec.VolumeAttributesClassName, unset),
		v.Status.Reason,
		age(v.CreationTimestamp, now),
		valueOr(v.Spec.VolumeMode, unset),
	}
}

func claimRow(c *corev1.PersistentVolumeClaim, now time.Time) []any {
	status := string(c.Status.Phase)
	if c.DeletionTimestamp != nil {
		status = "Terminating"
	}
	size, how := "", ""
	if c.Spec.VolumeName != "" {
		size, how = storageSize(c.Status.Capacity), formatAccessModes(c.Status.AccessModes)
	}
	class := ""
	if c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	if old, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		class = old
	}
	return []any{c.Name, status, c.Spec.VolumeName, size, how, class, valueOr(c.Spec.VolumeAttributesClassName, unset),
		age(c.CreationTimestamp, now), valueOr(c.Spec.VolumeMode, unset)}
}

func storageSize(list corev1.ResourceList) string {
	size, ok := list[corev1.ResourceStorage]
	if !ok {
		return ""
	}
	return size.String()
}

// formatAccessModes returns the abbreviated access modes in a fixed order.
func formatAccessModes(list []corev1.PersistentVolumeAccessMode) string {
	modes := map[corev1.PersistentVolumeAccessMode]bool{}
	for _, m := range list {
		modes[m] = true
	}
	var out []string
	for _, m := range []struct {
		mode corev1.PersistentVolumeAccessMode
		word string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"},
		{corev1.ReadWriteOncePod, "RWOP"}} {
		if modes[m.mode] {
			out = append(out, m.word)
		}
	}
	return strings.Join(out, ",")
}
