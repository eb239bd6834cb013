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

	"berth/internal/rules"
	"berth/podspec"
)

func storage(kind string) schema.GroupKind {
	return schema.GroupKind{Group: "storage.k8s.io", Kind: kind}
}

const (
	maxParameters     = 512
	maxParametersSize = 256 << 10 // keys and values together, in bytes
)

var storageRules = map[schema.GroupKind]rules.Rules{
	core("PersistentVolume"): definition[*corev1.PersistentVolume]{ClusterScoped: true, SetDefaults: defaultVolume,
		Validate: (*validator).volume, ValidateUpdate: (*validator).volumeChange}.Rules(newValidator),
	core("PersistentVolumeClaim"): definition[*corev1.PersistentVolumeClaim]{SetDefaults: podspec.SetClaimDefaults,
		Prepare: func(c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		},
		Validate: (*validator).claim, ValidateUpdate: (*validator).claimChange,
		ValidateStatus: func(k *validator, c, _ *corev1.PersistentVolumeClaim) {
			k.quantities(status.Child("capacity"), c.Status.Capacity)
		}}.Rules(newValidator),
	storage("StorageClass"): definition[*storagev1.StorageClass]{ClusterScoped: true,
		SetDefaults: func(c *storagev1.StorageClass) {
			rules.SetIfNil(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			rules.SetIfNil(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		},
		Validate: (*validator).storageClass, ValidateUpdate: (*validator).storageClassChange}.Rules(newValidator),
	storage("CSIDriver"): definition[*storagev1.CSIDriver]{
		ClusterScoped: true, SetDefaults: defaultDriver,
	}.Rules(newValidator),
	storage("CSINode"): definition[*storagev1.CSINode]{
		ClusterScoped: true, Validate: (*validator).csiNode,
	}.Rules(newValidator),
	storage("CSIStorageCapacity"): definition[*storagev1.CSIStorageCapacity]{
		Validate: func(k *validator, c *storagev1.CSIStorageCapacity) {
			k.Name(field.NewPath("storageClassName"), c.StorageClassName, validation.IsDNS1123Subdomain)
		},
	}.Rules(newValidator),
	storage("VolumeAttributesClass"): definition[*storagev1.VolumeAttributesClass]{
		ClusterScoped:  true,
		Validate:       (*validator).attributesClass,
		ValidateUpdate: (*validator).attributesClassChange,
	}.Rules(newValidator),
	storage("VolumeAttachment"): definition[*storagev1.VolumeAttachment]{
		ClusterScoped:  true,
		Validate:       (*validator).attachment,
		ValidateUpdate: func(k *validator, a, old *storagev1.VolumeAttachment) { k.Immutable(spec, a.Spec, old.Spec) },
	}.Rules(newValidator),
}

func defaultVolume(v *corev1.PersistentVolume) {
	rules.SetIfZero(&v.Status.Phase, corev1.VolumePending)
	rules.SetIfZero(&v.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	rules.SetIfNil(&v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	if h := v.Spec.HostPath; h != nil {
		rules.SetIfNil(&h.Type, corev1.HostPathUnset)
	}
	if i := v.Spec.ISCSI; i != nil {
		rules.SetIfZero(&i.ISCSIInterface, "default")
	}
	if r := v.Spec.RBD; r != nil {
		rules.SetIfZero(&r.RBDPool, "rbd")
		rules.SetIfZero(&r.RadosUser, "admin")
		rules.SetIfZero(&r.Keyring, "/etc/ceph/keyring")
	}
	roundUpToMilli(v.Spec.Capacity)
}

func (k *validator) volume(v *corev1.PersistentVolume) {
	k.AddAll(podspec.ValidateAccessModes(v.Spec.AccessModes, spec.Child("accessModes")))
	at := spec.Child("capacity")
	if len(v.Spec.Capacity) == 0 {
		k.Required(at, "")
	}
	for _, name := range slices.Sorted(maps.Keys(v.Spec.Capacity)) {
		if name != corev1.ResourceStorage {
			k.Add(field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceStorage}))
		}
		if q := v.Spec.Capacity[name]; q.Sign() <= 0 {
			k.Invalid(at.Key(string(name)), q.String(), "must be greater than zero")
		}
	}
	rules.OneOf(k, spec.Child("persistentVolumeReclaimPolicy"), v.Spec.PersistentVolumeReclaimPolicy,
		corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRetain)
	rules.OneOfIfSet(
		k,
		spec.Child("volumeMode"),
		v.Spec.VolumeMode,
		corev1.PersistentVolumeBlock,
		corev1.PersistentVolumeFilesystem,
	)
	if n := v.Spec.StorageClassName; n != "" {
		k.InvalidEach(spec.Child("storageClassName"), n, validation.IsDNS1123Subdomain(n))
	}
	switch n := sources(&v.Spec.PersistentVolumeSource); {
	case n == 0:
		k.Required(spec, "must specify a volume type")
	case n > 1:
		k.Forbidden(spec, "may not specify more than 1 volume type")
	}
	if h := v.Spec.HostPath; h != nil {
		if h.Path == "" {
			k.Required(spec.Child("hostPath", "path"), "")
		} else if slices.Contains(strings.Split(h.Path, "/"), "..") {
			k.Invalid(spec.Child("hostPath", "path"), h.Path, "must not contain '..'")
		}
		if h.Path == "/" && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			k.Forbidden(spec.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'")
		}
	}
	if l := v.Spec.Local; l != nil {
		if l.Path == "" {
			k.Required(spec.Child("local", "path"), "")
		}
		if v.Spec.NodeAffinity == nil {
			k.Required(spec.Child("nodeAffinity"), "Local volume requires node affinity")
		}
	}
	if c := v.Spec.CSI; c != nil {
		if c.Driver == "" {
			k.Required(spec.Child("csi", "driver"), "")
		}
		if c.VolumeHandle == "" {
			k.Required(spec.Child("csi", "volumeHandle"), "")
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
		k.Forbidden(
			spec.Child("persistentvolumesource"),
			"spec.persistentvolumesource is immutable after creation\nchanged: "+strings.Join(changed, ", "),
		)
	}
	k.Immutable(spec.Child("volumeMode"), v.Spec.VolumeMode, old.Spec.VolumeMode)
	if old.Spec.NodeAffinity != nil {
		k.Immutable(spec.Child("nodeAffinity"), v.Spec.NodeAffinity, old.Spec.NodeAffinity)
	}
}

func (k *validator) claim(c *corev1.PersistentVolumeClaim) {
	k.AddAll(podspec.ValidateClaimSpec(&c.Spec, spec))
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
				k.Forbidden(spec.Child("resources", "requests", "storage"),
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
		k.Forbidden(
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
	k.Name(field.NewPath("provisioner"), strings.ToLower(c.Provisioner), validation.IsQualifiedName)
	rules.OneOfIfSet(
		k,
		field.NewPath("reclaimPolicy"),
		c.ReclaimPolicy,
		corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRetain,
	)
	if c.VolumeBindingMode == nil {
		k.Required(field.NewPath("volumeBindingMode"), "")
	}
	rules.OneOfIfSet(
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
			k.Forbidden(field.NewPath(f.name), "updates to "+f.name+" are forbidden.")
		}
	}
	k.Immutable(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, old.VolumeBindingMode)
}

func (k *validator) attributesClass(c *storagev1.VolumeAttributesClass) {
	k.Name(field.NewPath("driverName"), strings.ToLower(c.DriverName), validation.IsQualifiedName)
	at, size := field.NewPath("parameters"), 0
	for name, value := range c.Parameters {
		if name == "" {
			k.Invalid(at, name, "field can not be empty.")
		}
		size += len(name) + len(value)
	}
	switch {
	case len(c.Parameters) == 0:
		k.Required(at, "must contain at least one key/value pair")
	case len(c.Parameters) > maxParameters:
		k.Add(field.TooLong(at, "", maxParameters))
	case size > maxParametersSize:
		k.Add(field.TooLong(at, "", maxParametersSize))
	}
}

func (k *validator) attributesClassChange(c, old *storagev1.VolumeAttributesClass) {
	if c.DriverName != old.DriverName {
		k.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden.")
	}
	if !equality.Semantic.DeepEqual(c.Parameters, old.Parameters) {
		k.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden.")
	}
}

func defaultDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	rules.SetIfNil(&s.AttachRequired, true)
	rules.SetIfNil(&s.PodInfoOnMount, false)
	rules.SetIfNil(&s.StorageCapacity, false)
	rules.SetIfNil(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	rules.SetIfNil(&s.RequiresRepublish, false)
	rules.SetIfNil(&s.SELinuxMount, false)
	rules.SetIfNil(&s.PreventPodSchedulingIfMissing, false)
}

func (k *validator) csiNode(n *storagev1.CSINode) {
	seen := map[string]bool{}
	for i, d := range n.Spec.Drivers {
		at := spec.Child("drivers").Index(i)
		k.Name(at.Child("name"), strings.ToLower(d.Name), validation.IsDNS1123Subdomain)
		if seen[d.Name] {
			k.Add(field.Duplicate(at.Child("name"), d.Name))
		}
		seen[d.Name] = true
		if d.NodeID == "" {
			k.Required(at.Child("nodeID"), "")
		}
	}
}

func (k *validator) attachment(a *storagev1.VolumeAttachment) {
	k.Name(spec.Child("attacher"), a.Spec.Attacher, validation.IsQualifiedName)
	k.Name(spec.Child("nodeName"), a.Spec.NodeName, validation.IsDNS1123Subdomain)
	if a.Spec.Source.PersistentVolumeName == nil && a.Spec.Source.InlineVolumeSpec == nil {
		k.Required(spec.Child("source"), "must specify exactly one of inlineVolumeSpec and persistentVolumeName")
	}
}
