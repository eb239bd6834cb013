package validation

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"berth/podspec"
)

func storage(kind string) schema.GroupKind {
	return schema.GroupKind{Group: "storage.k8s.io", Kind: kind}
}

const (
	maxParameters     = 512
	maxParametersSize = 256 << 10 // keys and values together, in bytes
)

var storageRules = map[schema.GroupKind]Rules{
	core("PersistentVolume"): definition[*corev1.PersistentVolume]{clusterScoped: true, setDefaults: defaultVolume,
		prepare: func(v *corev1.PersistentVolume) {
			v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
		},
		validate: (*validator).volume, validateUpdate: (*validator).volumeChange}.rules(),
	core("PersistentVolumeClaim"): definition[*corev1.PersistentVolumeClaim]{setDefaults: defaultClaim,
		prepare: func(c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		},
		validate: (*validator).claim, validateUpdate: (*validator).claimChange,
		validateStatus: func(k *validator, c, _ *corev1.PersistentVolumeClaim) {
			k.quantities(status.Child("capacity"), c.Status.Capacity)
		}}.rules(),
	storage("StorageClass"): definition[*storagev1.StorageClass]{clusterScoped: true,
		setDefaults: func(c *storagev1.StorageClass) {
			setIfNil(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			setIfNil(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		},
		validate: (*validator).storageClass, validateUpdate: (*validator).storageClassChange}.rules(),
	storage("CSIDriver"): definition[*storagev1.CSIDriver]{clusterScoped: true, setDefaults: defaultDriver}.rules(),
	storage("CSINode"):   definition[*storagev1.CSINode]{clusterScoped: true, validate: (*validator).csiNode}.rules(),
	storage("CSIStorageCapacity"): definition[*storagev1.CSIStorageCapacity]{
		validate: func(k *validator, c *storagev1.CSIStorageCapacity) {
			k.name(field.NewPath("storageClassName"), c.StorageClassName, validation.IsDNS1123Subdomain)
		},
	}.rules(),
	storage("VolumeAttributesClass"): definition[*storagev1.VolumeAttributesClass]{
		clusterScoped:  true,
		validate:       (*validator).attributesClass,
		validateUpdate: (*validator).attributesClassChange,
	}.rules(),
	storage("VolumeAttachment"): definition[*storagev1.VolumeAttachment]{
		clusterScoped:  true,
		validate:       (*validator).attachment,
		validateUpdate: func(k *validator, a, old *storagev1.VolumeAttachment) { k.immutable(spec, a.Spec, old.Spec) },
	}.rules(),
}

func defaultVolume(v *corev1.PersistentVolume) {
	setIfZero(&v.Status.Phase, corev1.VolumePending)
	setIfZero(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	setIfNil(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	if h := v.Spec.HostPath; h != nil {
		setIfNil(&h.Type, corev1.HostPathUnset)
	}
	if i := v.Spec.ISCSI; i != nil {
		setIfZero(&i.ISCSIInterface, "default")
	}
	if r := v.Spec.RBD; r != nil {
		setIfZero(&r.RBDPool, "rbd")
		setIfZero(&r.RadosUser, "admin")
		setIfZero(&r.Keyring, "/etc/ceph/keyring")
	}
	roundUpToMilli(v.Spec.Capacity)
}

func defaultClaim(c *corev1.PersistentVolumeClaim) {
	setIfZero(&c.Status.Phase, corev1.ClaimPending)
	setIfNil(&c.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	roundUpToMilli(c.Spec.Resources.Limits)
	roundUpToMilli(c.Spec.Resources.Requests)
}

func (k *validator) volume(v *corev1.PersistentVolume) {
	k.addAll(podspec.ValidateAccessModes(v.Spec.AccessModes, spec.Child("accessModes")))
	at := spec.Child("capacity")
	if len(v.Spec.Capacity) == 0 {
		k.required(at, "")
	}
	for _, name := range slices.Sorted(maps.Keys(v.Spec.Capacity)) {
		if name != corev1.ResourceStorage {
			k.add(field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceStorage}))
		}
		if q := v.Spec.Capacity[name]; q.Sign() <= 0 {
			k.invalid(at.Key(string(name)), q.String(), "must be greater than zero")
		}
	}
	oneOf(k, spec.Child("persistentVolumeReclaimPolicy"), v.Spec.PersistentVolumeReclaimPolicy,
		corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRetain)
	oneOfIfSet(
		k,
		spec.Child("volumeMode"),
		v.Spec.VolumeMode,
		corev1.PersistentVolumeBlock,
		corev1.PersistentVolumeFilesystem,
	)
	if n := v.Spec.StorageClassName; n != "" {
		k.invalidEach(spec.Child("storageClassName"), n, validation.IsDNS1123Subdomain(n))
	}
	switch n := sources(&v.Spec.PersistentVolumeSource); {
	case n == 0:
		k.required(spec, "must specify a volume type")
	case n > 1:
		k.forbidden(spec, "may not specify more than 1 volume type")
	}
	if h := v.Spec.HostPath; h != nil {
		if h.Path == "" {
			k.required(spec.Child("hostPath", "path"), "")
		} else if slices.Contains(strings.Split(h.Path, "/"), "..") {
			k.invalid(spec.Child("hostPath", "path"), h.Path, "must not contain '..'")
		}
		if h.Path == "/" && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			k.forbidden(spec.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'")
		}
	}
	if l := v.Spec.Local; l != nil {
		if l.Path == "" {
			k.required(spec.Child("local", "path"), "")
		}
		if v.Spec.NodeAffinity == nil {
			k.required(spec.Child("nodeAffinity"), "Local volume requires node affinity")
		}
	}
	if c := v.Spec.CSI; c != nil {
		if c.Driver == "" {
			k.required(spec.Child("csi", "driver"), "")
		}
		if c.VolumeHandle == "" {
			k.required(spec.Child("csi", "volumeHandle"), "")
		}
	}
}

// sources counts the volume sources that are set.
func sources(s *corev1.PersistentVolumeSource) (n int) {
	for _, f := range reflect.ValueOf(*s).Fields() {
		if f.Kind() == reflect.Pointer && !f.IsNil() {
			n++
		}
	}
	return n
}

func (k *validator) volumeChange(v, old *corev1.PersistentVolume) {
	if !equality.Semantic.DeepEqual(v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource) {
		changed := podspec.Differences("spec", old.Spec.PersistentVolumeSource, v.Spec.PersistentVolumeSource)
		k.forbidden(
			spec.Child("persistentvolumesource"),
			"spec.persistentvolumesource is immutable after creation\nchanged: "+strings.Join(changed, ", "),
		)
	}
	k.immutable(spec.Child("volumeMode"), v.Spec.VolumeMode, old.Spec.VolumeMode)
	if old.Spec.NodeAffinity != nil {
		k.immutable(spec.Child("nodeAffinity"), v.Spec.NodeAffinity, old.Spec.NodeAffinity)
	}
}

func (k *validator) claim(c *corev1.PersistentVolumeClaim) {
	k.addAll(podspec.ValidateClaimSpec(&c.Spec, spec))
}

func (k *validator) claimChange(c, old *corev1.PersistentVolumeClaim) {
	rest := c.Spec.DeepCopy()
	oldSpec := old.Spec
	// A claim can be bound, a bound claim can be expanded, and a class can be set later.
	if oldSpec.VolumeName == "" {
		rest.VolumeName = oldSpec.VolumeName
	}
	if old.Status.Phase == corev1.ClaimBound {
		if q, ok := oldSpec.Resources.Requests[corev1.ResourceStorage]; ok && rest.Resources.Requests != nil {
			if now := rest.Resources.Requests[corev1.ResourceStorage]; now.Cmp(q) < 0 &&
				now.Cmp(old.Status.Capacity[corev1.ResourceStorage]) <= 0 {
				k.forbidden(spec.Child("resources", "requests", "storage"),
					"field can not be less than status.capacity")
			}
			rest.Resources.Requests[corev1.ResourceStorage] = q
		}
	}
	if oldSpec.StorageClassName == nil {
		rest.StorageClassName = nil
	}
	rest.VolumeAttributesClassName = oldSpec.VolumeAttributesClassName
	if changed := podspec.Differences("spec", oldSpec, *rest); len(changed) > 0 {
		k.forbidden(
			spec,
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound "+
				"claims\nchanged: "+
				strings.Join(
					changed,
					", ",
				),
		)
	}
}

func (k *validator) storageClass(c *storagev1.StorageClass) {
	k.name(field.NewPath("provisioner"), strings.ToLower(c.Provisioner), validation.IsQualifiedName)
	oneOfIfSet(
		k,
		field.NewPath("reclaimPolicy"),
		c.ReclaimPolicy,
		corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRetain,
	)
	if c.VolumeBindingMode == nil {
		k.required(field.NewPath("volumeBindingMode"), "")
	}
	oneOfIfSet(
		k,
		field.NewPath("volumeBindingMode"),
		c.VolumeBindingMode,
		storagev1.VolumeBindingImmediate,
		storagev1.VolumeBindingWaitForFirstConsumer,
	)
}

func (k *validator) storageClassChange(c, old *storagev1.StorageClass) {
	for _, f := range []struct {
		name     string
		now, was any
	}{{"parameters", c.Parameters, old.Parameters}, {"provisioner", c.Provisioner, old.Provisioner},
		{"reclaimPolicy", c.ReclaimPolicy, old.ReclaimPolicy}} {
		if !equality.Semantic.DeepEqual(f.now, f.was) {
			k.forbidden(field.NewPath(f.name), "updates to "+f.name+" are forbidden.")
		}
	}
	k.immutable(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, old.VolumeBindingMode)
}

func (k *validator) attributesClass(c *storagev1.VolumeAttributesClass) {
	k.name(field.NewPath("driverName"), strings.ToLower(c.DriverName), validation.IsQualifiedName)
	at, size := field.NewPath("parameters"), 0
	for name, value := range c.Parameters {
		if name == "" {
			k.invalid(at, name, "field can not be empty.")
		}
		size += len(name) + len(value)
	}
	switch {
	case len(c.Parameters) == 0:
		k.required(at, "must contain at least one key/value pair")
	case len(c.Parameters) > maxParameters:
		k.add(field.TooLong(at, "", maxParameters))
	case size > maxParametersSize:
		k.add(field.TooLong(at, "", maxParametersSize))
	}
}

func (k *validator) attributesClassChange(c, old *storagev1.VolumeAttributesClass) {
	if c.DriverName != old.DriverName {
		k.forbidden(field.NewPath("driverName"), "updates to driverName are forbidden.")
	}
	if !equality.Semantic.DeepEqual(c.Parameters, old.Parameters) {
		k.forbidden(field.NewPath("parameters"), "updates to parameters are forbidden.")
	}
}

func defaultDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	setIfNil(&s.AttachRequired, true)
	setIfNil(&s.PodInfoOnMount, false)
	setIfNil(&s.StorageCapacity, false)
	setIfNil(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	setIfNil(&s.RequiresRepublish, false)
	setIfNil(&s.SELinuxMount, false)
}

func (k *validator) csiNode(n *storagev1.CSINode) {
	seen := map[string]bool{}
	for i, d := range n.Spec.Drivers {
		at := spec.Child("drivers").Index(i)
		k.name(at.Child("name"), strings.ToLower(d.Name), validation.IsDNS1123Subdomain)
		if seen[d.Name] {
			k.add(field.Duplicate(at.Child("name"), d.Name))
		}
		seen[d.Name] = true
		if d.NodeID == "" {
			k.required(at.Child("nodeID"), "")
		}
	}
}

func (k *validator) attachment(a *storagev1.VolumeAttachment) {
	k.name(spec.Child("attacher"), a.Spec.Attacher, validation.IsQualifiedName)
	k.name(spec.Child("nodeName"), a.Spec.NodeName, validation.IsDNS1123Subdomain)
	if a.Spec.Source.PersistentVolumeName == nil && a.Spec.Source.InlineVolumeSpec == nil {
		k.required(spec.Child("source"), "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
	}
}
