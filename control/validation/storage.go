package validation

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

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
		Prepare: prepareClaim,
		PrepareUpdate: func(c, old *corev1.PersistentVolumeClaim) {
			prepareDataSource(&c.Spec, &old.Spec)
		},
		Validate: (*validator).claim, ValidateUpdate: (*validator).claimChange,
		ValidateStatus: (*validator).volumeClaimStatus}.Rules(newValidator),
	storage("StorageClass"): definition[*storagev1.StorageClass]{ClusterScoped: true,
		SetDefaults: func(c *storagev1.StorageClass) {
			rules.SetIfNil(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
			rules.SetIfNil(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
		},
		Validate: (*validator).storageClass, ValidateUpdate: (*validator).storageClassChange}.Rules(newValidator),
	storage("CSIDriver"): definition[*storagev1.CSIDriver]{
		ClusterScoped: true, SetDefaults: defaultDriver,
		Validate: (*validator).csiDriver, ValidateUpdate: (*validator).csiDriverChange,
	}.Rules(newValidator),
	storage("CSINode"): definition[*storagev1.CSINode]{
		ClusterScoped: true, Validate: (*validator).csiNode, ValidateUpdate: (*validator).csiNodeChange,
		ValidateStatus: (*validator).csiNodeStatus,
	}.Rules(newValidator),
	storage("CSIStorageCapacity"): definition[*storagev1.CSIStorageCapacity]{
		Validate: (*validator).storageCapacity, ValidateUpdate: (*validator).storageCapacityChange,
	}.Rules(newValidator),
	storage("VolumeAttributesClass"): definition[*storagev1.VolumeAttributesClass]{
		ClusterScoped:  true,
		Validate:       (*validator).attributesClass,
		ValidateUpdate: (*validator).attributesClassChange,
	}.Rules(newValidator),
	storage("VolumeAttachment"): definition[*storagev1.VolumeAttachment]{
		ClusterScoped: true,
		Prepare:       func(a *storagev1.VolumeAttachment) { a.Status = storagev1.VolumeAttachmentStatus{} },
		Validate:      (*validator).attachment,
		ValidateUpdate: func(k *validator, a, old *storagev1.VolumeAttachment) {
			k.Immutable(spec, a.Spec, old.Spec)
		},
		ValidateStatus: func(k *validator, a, old *storagev1.VolumeAttachment) {
			k.attachment(a)
			k.Immutable(spec, a.Spec, old.Spec)
		},
	}.Rules(newValidator),
}

func (k *validator) storageClass(c *storagev1.StorageClass) {
	k.Name(field.NewPath("provisioner"), strings.ToLower(c.Provisioner), validation.IsQualifiedName)
	k.parameters(field.NewPath("parameters"), c.Parameters)
	if ptr.Deref(c.ReclaimPolicy, "") != "" {
		rules.OneOfIfSet(k, field.NewPath("reclaimPolicy"), c.ReclaimPolicy,
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain)
	}
	if c.VolumeBindingMode == nil {
		k.Required(field.NewPath("volumeBindingMode"), "")
	}
	rules.OneOfIfSet(k, field.NewPath("volumeBindingMode"), c.VolumeBindingMode,
		storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)
	k.topologies(field.NewPath("allowedTopologies"), c.AllowedTopologies)
}

// topologies validates topology terms: no key twice in a term, no term twice.
func (k *validator) topologies(at *field.Path, terms []corev1.TopologySelectorTerm) {
	var seen []map[string]sets.Set[string]
	for i, term := range terms {
		expressions := map[string]sets.Set[string]{}
		for j, e := range term.MatchLabelExpressions {
			path := at.Index(i).Child("matchLabelExpressions").Index(j)
			values := sets.New[string]()
			if len(e.Values) == 0 {
				k.Required(path.Child("values"), "")
			}
			for n, v := range e.Values {
				if values.Has(v) {
					k.Add(field.Duplicate(path.Child("values").Index(n), v))
				}
				values.Insert(v)
			}
			k.AddAll(metavalidation.ValidateLabelName(e.Key, path.Child("key")))
			if _, twice := expressions[e.Key]; twice {
				k.Add(field.Duplicate(path.Child("key"), e.Key))
			}
			expressions[e.Key] = values
		}
		// Kubernetes rejects an empty term as one that is there twice.
		if len(expressions) == 0 || slices.ContainsFunc(seen, func(s map[string]sets.Set[string]) bool {
			return equality.Semantic.DeepEqual(s, expressions)
		}) {
			k.Add(field.Duplicate(at.Index(i).Child("matchLabelExpressions"), ""))
		}
		seen = append(seen, expressions)
	}
}

func (k *validator) storageClassChange(c, old *storagev1.StorageClass) {
	k.Immutable(field.NewPath("parameters"), c.Parameters, old.Parameters)
	k.Immutable(field.NewPath("provisioner"), c.Provisioner, old.Provisioner)
	k.Immutable(field.NewPath("reclaimPolicy"), c.ReclaimPolicy, old.ReclaimPolicy)
	k.Immutable(field.NewPath("volumeBindingMode"), c.VolumeBindingMode, old.VolumeBindingMode)
}

// parameters validates the parameters of a class. It returns false if there are too many.
func (k *validator) parameters(at *field.Path, parameters map[string]string) bool {
	if len(parameters) > maxParameters {
		k.Add(field.TooLong(at, "", maxParameters))
		return false
	}
	size := 0
	for name, value := range parameters {
		if name == "" {
			k.Invalid(at, name, "field can not be empty.")
		}
		size += len(name) + len(value)
	}
	if size > maxParametersSize {
		k.Add(field.TooLong(at, "", maxParametersSize))
	}
	return true
}

func (k *validator) attributesClass(c *storagev1.VolumeAttributesClass) {
	k.Name(field.NewPath("driverName"), strings.ToLower(c.DriverName), validation.IsQualifiedName)
	at := field.NewPath("parameters")
	if k.parameters(at, c.Parameters) && len(c.Parameters) == 0 {
		k.Required(at, "must contain at least one key/value pair")
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

// driverName validates the name of a CSI driver.
func (k *validator) driverName(at *field.Path, name string) {
	const longest = 63
	if len(name) > longest {
		k.Add(field.TooLong(at, "", longest))
	}
	k.Name(at, strings.ToLower(name), validation.IsDNS1123Subdomain)
}

func (k *validator) csiDriver(d *storagev1.CSIDriver) {
	s := &d.Spec
	rules.OneOfIfSet(k, spec.Child("fsGroupPolicy"), s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
		storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy)
	audiences := sets.New[string]()
	for i, r := range s.TokenRequests {
		at := spec.Child("tokenRequests").Index(i)
		if audiences.Has(r.Audience) {
			k.Add(field.Duplicate(at.Child("audience"), r.Audience))
			continue
		}
		audiences.Insert(r.Audience)
		const shortest, longest = 600, 1 << 32 // seconds
		switch n := r.ExpirationSeconds; {
		case n == nil:
		case *n < shortest:
			k.Invalid(at.Child("expirationSeconds"), *n, "may not specify a duration less than 10 minutes")
		case *n > longest:
			k.Invalid(at.Child("expirationSeconds"), *n, "may not specify a duration larger than 2^32 seconds")
		}
	}
	for _, mode := range s.VolumeLifecycleModes {
		if mode != storagev1.VolumeLifecyclePersistent && mode != storagev1.VolumeLifecycleEphemeral {
			k.Add(field.NotSupported(spec.Child("volumeLifecycleModes"), mode, []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}))
		}
	}
	const shortestPeriod = 10
	if n := s.NodeAllocatableUpdatePeriodSeconds; n != nil && *n < shortestPeriod {
		k.Invalid(spec.Child("nodeAllocatableUpdatePeriodSeconds"), *n,
			"must be greater than or equal to %d seconds", shortestPeriod)
	}
	if s.ServiceAccountTokenInSecrets != nil && len(s.TokenRequests) == 0 {
		k.Invalid(spec.Child("serviceAccountTokenInSecrets"), *s.ServiceAccountTokenInSecrets,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified")
	}
}

func (k *validator) csiDriverChange(d, old *storagev1.CSIDriver) {
	// The first path is spelled as in Kubernetes.
	k.Immutable(spec.Child("attachedRequired"), d.Spec.AttachRequired, old.Spec.AttachRequired)
	k.Immutable(spec.Child("volumeLifecycleModes"), d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes)
}

func (k *validator) csiNode(n *storagev1.CSINode) {
	seen := sets.New[string]()
	for i, d := range n.Spec.Drivers {
		at := spec.Child("drivers").Index(i)
		k.driverName(at.Child("name"), d.Name)
		if seen.Has(d.Name) {
			k.Add(field.Duplicate(at.Child("name"), d.Name))
		}
		seen.Insert(d.Name)
		const longestID = 256
		if d.NodeID == "" {
			k.Required(at.Child("nodeID"), "")
		} else if len(d.NodeID) > longestID {
			k.Invalid(at.Child("nodeID"), d.NodeID, "must be %d characters or less", longestID)
		}
		if d.Allocatable != nil {
			rules.NotNegative(k, at.Child("allocatable", "count"), d.Allocatable.Count)
		}
		keys := sets.New[string]()
		for _, key := range d.TopologyKeys {
			if key == "" {
				k.Required(at, key)
			}
			if keys.Has(key) {
				k.Add(field.Duplicate(at, key))
			}
			keys.Insert(key)
			k.InvalidEach(at, key, validation.IsQualifiedName(key))
		}
	}
}

func (k *validator) csiNodeChange(n, old *storagev1.CSINode) {
	for _, was := range old.Spec.Drivers {
		for _, now := range n.Spec.Drivers {
			if now.Name == was.Name {
				now.Allocatable, was.Allocatable = nil, nil
				k.Immutable(spec.Child("drivers"), now, was)
			}
		}
	}
}

// csiNodeStatus validates the health of the storage that drivers report.
func (k *validator) csiNodeStatus(n, _ *storagev1.CSINode) {
	seen := sets.New[string]()
	for i, h := range n.Status.StorageHealth {
		at := status.Child("storageHealth").Index(i)
		if seen.Has(h.Name) {
			k.Add(field.Duplicate(at, h.Name))
		}
		seen.Insert(h.Name)
		k.driverName(at.Child("name"), h.Name)
		const most = 16
		if len(h.HealthConditions) > most {
			k.Add(field.TooMany(at.Child("healthConditions"), len(h.HealthConditions), most))
			continue
		}
		for j := range h.HealthConditions {
			k.storageHealth(at.Child("healthConditions").Index(j), &h.HealthConditions[j])
		}
	}
}

func (k *validator) storageHealth(at *field.Path, c *storagev1.StorageHealthCondition) {
	const longestReason, longestMessage = 256, 1024
	rules.OneOfIfSet(k, at.Child("status"), &c.Status, storagev1.StorageUnreachable, storagev1.StorageDegraded)
	k.Name(at.Child("reason"), c.Reason, metavalidation.IsValidConditionReason)
	if len(c.Reason) > longestReason {
		k.Add(field.TooLong(at.Child("reason"), c.Reason, longestReason))
	}
	if len(c.Message) > longestMessage {
		k.Add(field.TooLong(at.Child("message"), c.Message, longestMessage))
	}
	rules.OneOfIfSet(k, at.Child("accessMode"), c.AccessMode, corev1.ReadWriteOnce, corev1.ReadOnlyMany,
		corev1.ReadWriteMany, corev1.ReadWriteOncePod)
	rules.OneOfIfSet(k, at.Child("volumeMode"), c.VolumeMode, corev1.PersistentVolumeFilesystem,
		corev1.PersistentVolumeBlock)
}

func (k *validator) storageCapacity(c *storagev1.CSIStorageCapacity) {
	class := c.StorageClassName
	k.InvalidEach(field.NewPath("storageClassName"), class, validation.IsDNS1123Subdomain(class))
	k.Selector(field.NewPath("nodeTopology"), c.NodeTopology)
	if q := c.Capacity; q != nil && q.Sign() < 0 {
		k.Invalid(field.NewPath("capacity"), q.String(), "must be greater than or equal to 0")
	}
}

func (k *validator) storageCapacityChange(c, old *storagev1.CSIStorageCapacity) {
	k.Immutable(field.NewPath("nodeTopology"), c.NodeTopology, old.NodeTopology)
	k.Immutable(field.NewPath("storageClassName"), c.StorageClassName, old.StorageClassName)
}

func (k *validator) attachment(a *storagev1.VolumeAttachment) {
	k.driverName(spec.Child("attacher"), a.Spec.Attacher)
	k.InvalidEach(spec.Child("nodeName"), a.Spec.NodeName, validation.IsDNS1123Subdomain(a.Spec.NodeName))
	k.attachmentSource(spec.Child("source"), &a.Spec.Source)
	const maxMetadata = 256 << 10
	size := 0
	for name, value := range a.Status.AttachmentMetadata {
		size += len(name) + len(value)
	}
	if size > maxMetadata {
		k.Add(field.TooLong(status.Child("attachmentMetadata"), "", maxMetadata))
	}
	k.volumeError(status.Child("attachError"), a.Status.AttachError)
	k.volumeError(status.Child("detachError"), a.Status.DetachError)
}

func (k *validator) attachmentSource(at *field.Path, s *storagev1.VolumeAttachmentSource) {
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch name := s.PersistentVolumeName; {
	case name == nil && s.InlineVolumeSpec == nil:
		k.Required(at, one)
	case name != nil && s.InlineVolumeSpec != nil:
		k.Forbidden(at, one)
	case name != nil:
		if *name == "" {
			k.Required(at.Child("persistentVolumeName"), "")
		}
	default:
		k.inlineVolume(at.Child("inlineVolumeSpec"), s.InlineVolumeSpec)
	}
	if name := s.PersistentVolumeName; name != nil {
		k.InvalidEach(at.Child("persistentVolumeName"), *name, validation.IsDNS1123Subdomain(*name))
	}
}

// inlineVolume validates the volume of an attachment that is not a PersistentVolume: one of a CSI driver, and nothing
// that concerns claims.
func (k *validator) inlineVolume(at *field.Path, s *corev1.PersistentVolumeSpec) {
	const inline = "may not be specified in the context of inline volumes"
	if s.ClaimRef != nil {
		k.Forbidden(at.Child("claimRef"), inline)
	}
	if len(s.Capacity) != 0 {
		k.Forbidden(at.Child("capacity"), inline)
	}
	if s.CSI == nil {
		k.Required(at.Child("csi"), "has to be specified in the context of inline volumes")
	}
	k.AddAll(podspec.ValidateAccessModes(s.AccessModes, at.Child("accessModes")))
	if p := s.PersistentVolumeReclaimPolicy; p != "" && p != corev1.PersistentVolumeReclaimRetain {
		k.Forbidden(at.Child("persistentVolumeReclaimPolicy"), "may only be Retain in the context of inline volumes")
	}
	if s.NodeAffinity != nil {
		k.Forbidden(at.Child("nodeAffinity"), inline)
	}
	k.volumeSource(at, "", s)
	if s.StorageClassName != "" {
		k.Forbidden(at.Child("storageClassName"), inline)
	}
	if m := s.VolumeMode; m != nil && *m != corev1.PersistentVolumeFilesystem {
		k.Forbidden(at.Child("volumeMode"),
			"may not specify volumeMode other than Filesystem in the context of inline volumes")
	}
}

func (k *validator) volumeError(at *field.Path, e *storagev1.VolumeError) {
	const longest = 1024
	if e == nil {
		return
	}
	if len(e.Message) > longest {
		k.Add(field.TooLong(at.Child("message"), "", longest))
	}
	rules.NotNegative(k, at.Child("errorCode"), e.ErrorCode)
}
