package podspec

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// maxUnit is the highest number of a partition or LUN.
const maxUnit = 255

// remoteVolume validates the required fields of network volumes.
func (k *validator) remoteVolume(at *field.Path, v *corev1.VolumeSource) {
	switch {
	case v.ISCSI != nil:
		k.iscsi(at, v.ISCSI)
	case v.RBD != nil:
		k.requireAny(at.Child("monitors"), len(v.RBD.CephMonitors))
		k.requireAll(at, "image", v.RBD.RBDImage)
	case v.CephFS != nil:
		k.requireAny(at.Child("monitors"), len(v.CephFS.Monitors))
	case v.FC != nil:
		k.fibreChannel(at, v.FC)
	case v.FlexVolume != nil:
		k.flexVolume(at, v.FlexVolume)
	case v.AzureFile != nil:
		k.requireAll(at, "secretName", v.AzureFile.SecretName, "shareName", v.AzureFile.ShareName)
	case v.AzureDisk != nil:
		k.requireAll(at, "diskName", v.AzureDisk.DiskName, "diskURI", v.AzureDisk.DataDiskURI)
	case v.GCEPersistentDisk != nil:
		k.requireAll(at, "pdName", v.GCEPersistentDisk.PDName)
		k.between(at.Child("partition"), int64(v.GCEPersistentDisk.Partition), 0, maxUnit)
	case v.AWSElasticBlockStore != nil:
		k.requireAll(at, "volumeID", v.AWSElasticBlockStore.VolumeID)
		k.between(at.Child("partition"), int64(v.AWSElasticBlockStore.Partition), 0, maxUnit)
	case v.Cinder != nil:
		k.requireAll(at, "volumeID", v.Cinder.VolumeID)
		k.keyOf(at, v.Cinder.SecretRef)
	case v.StorageOS != nil:
		k.name(at.Child("volumeName"), v.StorageOS.VolumeName, utilvalidation.IsDNS1123Label)
		k.keyOf(at, v.StorageOS.SecretRef)
	case v.Glusterfs != nil:
		k.requireAll(at, "endpoints", v.Glusterfs.EndpointsName, "path", v.Glusterfs.Path)
	case v.Quobyte != nil:
		k.requireAll(at, "registry", v.Quobyte.Registry, "volume", v.Quobyte.Volume)
	case v.ScaleIO != nil:
		k.requireAll(at, "gateway", v.ScaleIO.Gateway, "system", v.ScaleIO.System, "volumeName", v.ScaleIO.VolumeName)
	case v.VsphereVolume != nil:
		k.requireAll(at, "volumePath", v.VsphereVolume.VolumePath)
	case v.PortworxVolume != nil:
		k.requireAll(at, "volumeID", v.PortworxVolume.VolumeID)
	case v.PhotonPersistentDisk != nil:
		k.requireAll(at, "pdID", v.PhotonPersistentDisk.PdID)
	case v.Flocker != nil:
		if (v.Flocker.DatasetName == "") == (v.Flocker.DatasetUUID == "") {
			k.required(at, "one of datasetName and datasetUUID")
		}
	case v.GitRepo != nil:
		k.requireAll(at, "repository", v.GitRepo.Repository)
	}
}

// requireAll requires strings, given as pairs of field name and value.
func (k *validator) requireAll(at *field.Path, words ...string) {
	for pair := range slices.Chunk(words, 2) {
		if pair[1] == "" {
			k.required(at.Child(pair[0]), "")
		}
	}
}

func (k *validator) requireAny(at *field.Path, n int) {
	if n == 0 {
		k.required(at, "")
	}
}

func (k *validator) keyOf(at *field.Path, secret *corev1.LocalObjectReference) {
	if secret != nil {
		k.requireAll(at.Child("secretRef"), "name", secret.Name)
	}
}

func (k *validator) iscsi(at *field.Path, v *corev1.ISCSIVolumeSource) {
	k.requireAll(at, "targetPortal", v.TargetPortal, "iqn", v.IQN)
	if v.IQN != "" && !IsISCSIName(v.IQN) {
		k.invalid(at.Child("iqn"), v.IQN, "must be a name that begins with iqn, eui or naa")
	}
	if n := v.InitiatorName; n != nil && !IsISCSIName(*n) {
		k.invalid(at.Child("initiatorName"), *n, "must be a name that begins with iqn, eui or naa")
	}
	k.between(at.Child("lun"), int64(v.Lun), 0, maxUnit)
	if (v.DiscoveryCHAPAuth || v.SessionCHAPAuth) && v.SecretRef == nil {
		k.required(at.Child("secretRef"), "")
	}
}

// IsISCSIName reports whether a name has one of the three forms: iqn.YEAR-MONTH.DOMAIN:NAME, or eui.
// or naa. followed by digits.
func IsISCSIName(name string) bool {
	kind, rest, _ := strings.Cut(name, ".")
	strange := func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}
	switch kind {
	case "eui":
		return len(rest) == 16 && !strings.ContainsFunc(rest, strange)
	case "naa":
		return len(rest) == 32 && !strings.ContainsFunc(rest, strange)
	case "iqn":
		date, domain, _ := strings.Cut(rest, ".")
		domain, own, _ := strings.Cut(domain, ":")
		year, month, _ := strings.Cut(date, "-")
		notDigit := func(r rune) bool { return r < '0' || r > '9' }
		return len(year) == 4 && len(month) == 2 && !strings.ContainsFunc(year+month, notDigit) &&
			domain != "" && !strings.ContainsFunc(domain, func(r rune) bool {
			return strange(r) && r != '-' && r != '.'
		}) &&
			own != "" && !strings.ContainsAny(own, ",;*&$| \t\n\r\f\v")
	}
	return false
}

func (k *validator) fibreChannel(at *field.Path, v *corev1.FCVolumeSource) {
	k.exactlyOne(
		at.Child("targetWWNs"),
		v.TargetWWNs,
		"`targetWWNs`, `wwids`",
		len(v.TargetWWNs) > 0,
		len(v.WWIDs) > 0,
	)
	switch {
	case len(v.TargetWWNs) == 0:
	case v.Lun == nil:
		k.required(at.Child("lun"), "")
	default:
		k.between(at.Child("lun"), int64(*v.Lun), 0, maxUnit)
	}
}

func (k *validator) flexVolume(at *field.Path, v *corev1.FlexVolumeSource) {
	k.requireAll(at, "driver", v.Driver)
	for key := range v.Options {
		domain, _, _ := strings.Cut(strings.ToLower(key), "/")
		if domain = "." + domain; strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
			k.invalid(at.Child("options").Key(key), key, "kubernetes.io and k8s.io namespaces are reserved")
		}
	}
}

// ephemeral validates the claim template of an ephemeral volume, and the name of the resulting
// claim.
func (k *validator) ephemeral(at *field.Path, v *corev1.Volume) {
	t, template := v.Ephemeral.VolumeClaimTemplate, at.Child("ephemeral", "volumeClaimTemplate")
	if t == nil {
		k.required(template, "")
		return
	}
	k.errs = append(k.errs, metavalidation.ValidateLabels(t.Labels, template.Child("metadata", "labels"))...)
	k.errs = append(
		k.errs,
		validation.ValidateAnnotations(t.Annotations, template.Child("metadata", "annotations"))...)
	k.errs = append(k.errs, ValidateClaimSpec(&t.Spec, template.Child("spec"))...)
	if !k.template && k.pod.Name != "" && v.Name != "" {
		k.each(at.Child("name"), v.Name, utilvalidation.IsDNS1123Subdomain(k.pod.Name+"-"+v.Name))
	}
}

// ValidateClaimSpec returns every error of the spec of a PersistentVolumeClaim at a path.
func ValidateClaimSpec(c *corev1.PersistentVolumeClaimSpec, at *field.Path) field.ErrorList {
	k := &validator{errs: ValidateAccessModes(c.AccessModes, at.Child("accessModes"))}
	if c.Selector != nil {
		k.errs = append(
			k.errs,
			metavalidation.ValidateLabelSelector(
				c.Selector,
				metavalidation.LabelSelectorValidationOptions{},
				at.Child("selector"),
			)...)
	}
	resources := at.Child("resources")
	size, requested := c.Resources.Requests[corev1.ResourceStorage]
	if !requested {
		k.required(resources.Key(string(corev1.ResourceStorage)), "")
	} else if size.Sign() <= 0 {
		k.invalid(resources.Key(string(corev1.ResourceStorage)), size.String(), "must be greater than zero")
	}
	if n := c.StorageClassName; n != nil && *n != "" {
		k.each(at.Child("storageClassName"), *n, utilvalidation.IsDNS1123Subdomain(*n))
	}
	oneOfIfSet(
		k,
		at.Child("volumeMode"),
		c.VolumeMode,
		corev1.PersistentVolumeBlock,
		corev1.PersistentVolumeFilesystem,
	)
	k.dataSource(at, c)
	if n := c.VolumeAttributesClassName; n != nil && *n != "" {
		k.each(at.Child("volumeAttributesClassName"), *n, utilvalidation.IsDNS1123Subdomain(*n))
	}
	return k.errs
}

// dataSource validates the data source of a claim. Both of its fields hold the same, unless it is in another namespace.
func (k *validator) dataSource(at *field.Path, c *corev1.PersistentVolumeClaimSpec) {
	d, r := c.DataSource, c.DataSourceRef
	if d != nil {
		k.dataReference(at.Child("dataSource"), ptr.Deref(d.APIGroup, ""), d.Kind, d.Name)
	}
	if r == nil {
		return
	}
	k.dataReference(at.Child("dataSourceRef"), ptr.Deref(r.APIGroup, ""), r.Kind, r.Name)
	namespace := ptr.Deref(r.Namespace, "")
	if namespace != "" {
		k.each(at.Child("dataSourceRef", "namespace"), namespace, utilvalidation.IsDNS1123Label(namespace))
	}
	switch {
	case d == nil:
	case namespace != "":
		k.invalid(at, at.Child("dataSource").String(), "may not be specified when dataSourceRef.namespace is specified")
	case d.Kind != r.Kind || d.Name != r.Name || ptr.Deref(d.APIGroup, "") != ptr.Deref(r.APIGroup, ""):
		k.invalid(at, at.Child("dataSource").String(), "must match dataSourceRef")
	}
}

func (k *validator) dataReference(at *field.Path, group, kind, name string) {
	k.requireAll(at, "name", name, "kind", kind)
	if group != "" {
		k.each(at.Child("apiGroup"), group, utilvalidation.IsDNS1123Subdomain(group))
	} else if kind != "PersistentVolumeClaim" {
		k.invalid(at, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
	}
}

// ValidateAccessModes returns every error of access modes.
func ValidateAccessModes(list []corev1.PersistentVolumeAccessMode, at *field.Path) field.ErrorList {
	k := &validator{}
	if len(list) == 0 {
		k.required(at, "at least 1 access mode is required")
	}
	for _, m := range list {
		oneOf(k, at, m, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
	}
	if len(list) > 1 && slices.Contains(list, corev1.ReadWriteOncePod) {
		k.forbidden(at, "may not use ReadWriteOncePod with other access modes")
	}
	return k.errs
}
