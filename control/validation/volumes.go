package validation

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"berth/internal/rules"
	"berth/podspec"
)

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
	if s := v.Spec.ScaleIO; s != nil {
		rules.SetIfZero(&s.StorageMode, "ThinProvisioned")
		rules.SetIfZero(&s.FSType, "xfs")
	}
	if a := v.Spec.AzureDisk; a != nil {
		rules.SetIfNil(&a.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		rules.SetIfNil(&a.Kind, corev1.AzureSharedBlobDisk)
		rules.SetIfNil(&a.FSType, "ext4")
		rules.SetIfNil(&a.ReadOnly, false)
	}
	roundUpToMilli(v.Spec.Capacity)
}

func (k *validator) volume(v *corev1.PersistentVolume) {
	k.AddAll(podspec.ValidateAccessModes(v.Spec.AccessModes, spec.Child("accessModes")))
	k.volumeCapacity(spec.Child("capacity"), v.Spec.Capacity)
	if v.Spec.PersistentVolumeReclaimPolicy != "" {
		rules.OneOf(k, spec.Child("persistentVolumeReclaimPolicy"), v.Spec.PersistentVolumeReclaimPolicy,
			corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimDelete,
			corev1.PersistentVolumeReclaimRetain)
	}
	rules.OneOfIfSet(k, spec.Child("volumeMode"), v.Spec.VolumeMode,
		corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	if n := v.Spec.StorageClassName; n != "" {
		k.InvalidEach(spec.Child("storageClassName"), n, validation.IsDNS1123Subdomain(n))
	}
	if a := v.Spec.NodeAffinity; a != nil {
		at := spec.Child("nodeAffinity", "required")
		if a.Required == nil {
			k.Required(at, "must specify required node constraints")
		} else {
			k.AddAll(podspec.ValidateNodeSelector(at, a.Required))
		}
	}
	k.volumeSource(spec, v.Name, &v.Spec)
	if h := v.Spec.HostPath; h != nil && h.Path != "" && strings.Trim(h.Path, "/") == "" &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
		k.Forbidden(spec.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'")
	}
	if n := v.Spec.VolumeAttributesClassName; n != nil {
		k.Name(spec.Child("volumeAttributesClassName"), *n, validation.IsDNS1123Subdomain)
		if v.Spec.CSI == nil {
			k.Required(spec.Child("csi"), "has to be specified when using volumeAttributesClassName")
		}
	}
}

// volumeCapacity validates the capacity of a volume, which has storage and nothing else.
func (k *validator) volumeCapacity(at *field.Path, capacity corev1.ResourceList) {
	if len(capacity) == 0 {
		k.Required(at, "")
	}
	if _, ok := capacity[corev1.ResourceStorage]; !ok || len(capacity) > 1 {
		k.Add(field.NotSupported(at, slices.Sorted(maps.Keys(capacity)), []corev1.ResourceName{corev1.ResourceStorage}))
	}
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		q := capacity[name]
		if q.Sign() < 0 {
			k.Invalid(at.Key(string(name)), q.String(), "must be a valid resource quantity")
		}
		if q.Sign() <= 0 {
			k.Invalid(at.Key(string(name)), q.String(), "must be greater than zero")
		}
	}
}

// volumeSource validates that a volume has one source, and the first one. name is the name of the volume.
func (k *validator) volumeSource(at *field.Path, name string, s *corev1.PersistentVolumeSpec) {
	n := 0
	for _, source := range volumeSources(s) {
		if !source.set {
			continue
		}
		// A flexVolume may be beside others, as in Kubernetes.
		if n++; n > 1 && source.name != "flexVolume" {
			k.Forbidden(at.Child(source.name), "may not specify more than 1 volume type")
			continue
		}
		if source.validate != nil {
			source.validate(k, at.Child(source.path()), name, s)
		} else {
			k.AddAll(podspec.ValidateVolumeSource(at.Child(source.path()), &source.pod))
		}
	}
	if n == 0 {
		k.Required(at, "must specify a volume type")
	}
}

// volumeSource is one of the sources that a PersistentVolume can have.
type volumeSource struct {
	name string
	set  bool
	pod  corev1.VolumeSource // the same source of a pod
	// validate validates a source that a pod does not have.
	validate func(k *validator, at *field.Path, name string, s *corev1.PersistentVolumeSpec)
}

// path returns the name of the source in the path of errors about it. Kubernetes has another for two of them.
func (s *volumeSource) path() string {
	switch s.name {
	case "gcePersistentDisk":
		return "persistentDisk"
	case "cephFS":
		return "cephfs"
	}
	return s.name
}

// volumeSources returns all sources in the order in which Kubernetes validates them.
func volumeSources(s *corev1.PersistentVolumeSpec) []volumeSource {
	pod := func(name string, set bool, source corev1.VolumeSource) volumeSource {
		return volumeSource{name: name, set: set, pod: source}
	}
	return []volumeSource{
		pod("hostPath", s.HostPath != nil, corev1.VolumeSource{HostPath: s.HostPath}),
		pod("gcePersistentDisk", s.GCEPersistentDisk != nil,
			corev1.VolumeSource{GCEPersistentDisk: s.GCEPersistentDisk}),
		pod("awsElasticBlockStore", s.AWSElasticBlockStore != nil,
			corev1.VolumeSource{AWSElasticBlockStore: s.AWSElasticBlockStore}),
		{name: "glusterfs", set: s.Glusterfs != nil, validate: (*validator).glusterfsVolume},
		pod("flocker", s.Flocker != nil, corev1.VolumeSource{Flocker: s.Flocker}),
		pod("nfs", s.NFS != nil, corev1.VolumeSource{NFS: s.NFS}),
		{name: "rbd", set: s.RBD != nil, validate: (*validator).rbdVolume},
		pod("quobyte", s.Quobyte != nil, corev1.VolumeSource{Quobyte: s.Quobyte}),
		{name: "cephFS", set: s.CephFS != nil, validate: (*validator).cephFSVolume},
		{name: "iscsi", set: s.ISCSI != nil, validate: (*validator).iscsiVolume},
		{name: "cinder", set: s.Cinder != nil, validate: (*validator).cinderVolume},
		pod("fc", s.FC != nil, corev1.VolumeSource{FC: s.FC}),
		{name: "flexVolume", set: s.FlexVolume != nil, validate: (*validator).flexVolume},
		{name: "azureFile", set: s.AzureFile != nil, validate: (*validator).azureFileVolume},
		pod("vsphereVolume", s.VsphereVolume != nil, corev1.VolumeSource{VsphereVolume: s.VsphereVolume}),
		pod("photonPersistentDisk", s.PhotonPersistentDisk != nil,
			corev1.VolumeSource{PhotonPersistentDisk: s.PhotonPersistentDisk}),
		pod("portworxVolume", s.PortworxVolume != nil, corev1.VolumeSource{PortworxVolume: s.PortworxVolume}),
		pod("azureDisk", s.AzureDisk != nil, corev1.VolumeSource{AzureDisk: s.AzureDisk}),
		{name: "scaleIO", set: s.ScaleIO != nil, validate: (*validator).scaleIOVolume},
		{name: "local", set: s.Local != nil, validate: (*validator).localVolume},
		{name: "storageos", set: s.StorageOS != nil, validate: (*validator).storageOSVolume},
		{name: "csi", set: s.CSI != nil, validate: (*validator).csiVolume},
	}
}

// requireFields requires strings, given as pairs of field name and value.
func (k *validator) requireFields(at *field.Path, pairs ...string) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] == "" {
			k.Required(at.Child(pair[0]), "")
		}
	}
}

func (k *validator) glusterfsVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.requireFields(at, "endpoints", s.Glusterfs.EndpointsName, "path", s.Glusterfs.Path)
	if n := s.Glusterfs.EndpointsNamespace; n != nil {
		k.InvalidEach(at.Child("endpointsNamespace"), *n, validation.IsDNS1123Label(*n))
	}
}

func (k *validator) rbdVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	if len(s.RBD.CephMonitors) == 0 {
		k.Required(at.Child("monitors"), "")
	}
	k.requireFields(at, "image", s.RBD.RBDImage)
}

func (k *validator) cephFSVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	if len(s.CephFS.Monitors) == 0 {
		k.Required(at.Child("monitors"), "")
	}
}

// iscsiVolume also limits the name of the interface that the initiator name needs: it has the name of the volume.
func (k *validator) iscsiVolume(at *field.Path, name string, s *corev1.PersistentVolumeSpec) {
	i := s.ISCSI
	pod := corev1.ISCSIVolumeSource{TargetPortal: i.TargetPortal, IQN: i.IQN, Lun: i.Lun,
		DiscoveryCHAPAuth: i.DiscoveryCHAPAuth, SessionCHAPAuth: i.SessionCHAPAuth}
	if i.SecretRef != nil {
		pod.SecretRef = &corev1.LocalObjectReference{Name: i.SecretRef.Name}
		k.requireFields(at.Child("secretRef"), "name", i.SecretRef.Name)
	}
	k.AddAll(podspec.ValidateVolumeSource(at, &corev1.VolumeSource{ISCSI: &pod}))
	if i.InitiatorName == nil {
		return
	}
	const longest = 64
	if len(name)+len(":")+len(i.TargetPortal) > longest {
		k.Invalid(at.Child("targetportal"), i.TargetPortal, "Total length of <volume name>:<iscsi.targetPortal> "+
			"must be under %d characters if iscsi.initiatorName is specified.", longest)
	}
	if !podspec.IsISCSIName(*i.InitiatorName) {
		k.Invalid(at.Child("initiatorname"), *i.InitiatorName, "must be a name that begins with iqn, eui or naa")
	}
}

func (k *validator) cinderVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.requireFields(at, "volumeID", s.Cinder.VolumeID)
	if r := s.Cinder.SecretRef; r != nil {
		k.requireFields(at.Child("secretRef"), "name", r.Name, "namespace", r.Namespace)
	}
}

func (k *validator) flexVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.AddAll(podspec.ValidateVolumeSource(at, &corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{
		Driver: s.FlexVolume.Driver, Options: s.FlexVolume.Options}}))
}

func (k *validator) azureFileVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.requireFields(at, "secretName", s.AzureFile.SecretName, "shareName", s.AzureFile.ShareName)
	if n := s.AzureFile.SecretNamespace; n != nil {
		k.requireFields(at, "secretNamespace", *n)
	}
}

func (k *validator) scaleIOVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.requireFields(at, "gateway", s.ScaleIO.Gateway, "system", s.ScaleIO.System, "volumeName", s.ScaleIO.VolumeName)
}

func (k *validator) localVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.requireFields(at, "path", s.Local.Path)
	if slices.Contains(strings.Split(s.Local.Path, "/"), "..") {
		k.Invalid(at.Child("path"), s.Local.Path, "must not contain '..'")
	}
	if s.NodeAffinity == nil {
		k.Required(spec.Child("nodeAffinity"), "Local volume requires node affinity")
	}
}

func (k *validator) storageOSVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.Name(at.Child("volumeName"), s.StorageOS.VolumeName, validation.IsDNS1123Label)
	if n := s.StorageOS.VolumeNamespace; n != "" {
		k.Name(at.Child("volumeNamespace"), n, validation.IsDNS1123Label)
	}
	if r := s.StorageOS.SecretRef; r != nil {
		k.requireFields(at.Child("secretRef"), "name", r.Name, "namespace", r.Namespace)
	}
}

func (k *validator) csiVolume(at *field.Path, _ string, s *corev1.PersistentVolumeSpec) {
	k.driverName(at.Child("driver"), s.CSI.Driver)
	k.requireFields(at, "volumeHandle", s.CSI.VolumeHandle)
	for _, secret := range []struct {
		name string
		ref  *corev1.SecretReference
	}{{"controllerPublishSecretRef", s.CSI.ControllerPublishSecretRef},
		{"controllerExpandSecretRef", s.CSI.ControllerExpandSecretRef},
		{"nodePublishSecretRef", s.CSI.NodePublishSecretRef},
		{"nodeExpandSecretRef", s.CSI.NodeExpandSecretRef}} {
		if secret.ref != nil {
			k.Name(at.Child(secret.name, "name"), secret.ref.Name, validation.IsDNS1123Subdomain)
			k.Name(at.Child(secret.name, "namespace"), secret.ref.Namespace, validation.IsDNS1123Label)
		}
	}
}

func (k *validator) volumeChange(v, old *corev1.PersistentVolume) {
	now, was := v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource
	if now.CSI != nil && was.CSI != nil && was.CSI.ControllerExpandSecretRef == nil {
		now = *now.DeepCopy()
		now.CSI.ControllerExpandSecretRef = nil // can be added
	}
	if !equality.Semantic.DeepEqual(now, was) {
		k.Forbidden(spec.Child("persistentvolumesource"),
			"spec.persistentvolumesource is immutable after creation\nchanged: "+
				strings.Join(podspec.Differences("spec", was, now), ", "))
	}
	// Kubernetes reports these two fields without "spec".
	k.Immutable(field.NewPath("volumeMode"), v.Spec.VolumeMode, old.Spec.VolumeMode)
	if old.Spec.NodeAffinity != nil {
		k.Immutable(field.NewPath("nodeAffinity"), v.Spec.NodeAffinity, old.Spec.NodeAffinity)
	}
	if old.Spec.VolumeAttributesClassName != nil && v.Spec.VolumeAttributesClassName == nil {
		k.Forbidden(spec.Child("volumeAttributesClassName"), "update from non-nil value to nil is forbidden")
	}
}

// prepareClaim clears the status of a new claim and completes its data source.
func prepareClaim(c *corev1.PersistentVolumeClaim) {
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
	prepareDataSource(&c.Spec, nil)
}

// prepareDataSource copies dataSource to dataSourceRef or the other way round, and drops what the API has never
// accepted: sources of other kinds in dataSource, and sources in other namespaces.
func prepareDataSource(c, old *corev1.PersistentVolumeClaimSpec) {
	const snapshots = "snapshot.storage.k8s.io"
	if r := c.DataSourceRef; r != nil && ptr.Deref(r.Namespace, "") != "" && (old == nil || old.DataSourceRef == nil) {
		c.DataSourceRef = nil
	}
	oldHas := old != nil && (old.DataSource != nil || old.DataSourceRef != nil)
	if d := c.DataSource; d != nil && c.DataSourceRef == nil && !oldHas {
		group := ptr.Deref(d.APIGroup, "")
		if (d.Kind != "PersistentVolumeClaim" || group != "") && (d.Kind != "VolumeSnapshot" || group != snapshots) {
			c.DataSource = nil
		}
	}
	completeDataSource(c)
	if old != nil {
		completeDataSource(old)
	}
}

func completeDataSource(c *corev1.PersistentVolumeClaimSpec) {
	switch d, r := c.DataSource, c.DataSourceRef; {
	case d != nil && r == nil:
		c.DataSourceRef = &corev1.TypedObjectReference{APIGroup: d.APIGroup, Kind: d.Kind, Name: d.Name}
	case d == nil && r != nil && ptr.Deref(r.Namespace, "") == "":
		c.DataSource = &corev1.TypedLocalObjectReference{APIGroup: r.APIGroup, Kind: r.Kind, Name: r.Name}
	}
}

func (k *validator) claim(c *corev1.PersistentVolumeClaim) {
	k.AddAll(podspec.ValidateClaimSpec(&c.Spec, spec))
}

func (k *validator) claimChange(c, old *corev1.PersistentVolumeClaim) {
	rest, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	bound := c.Status.Phase == corev1.ClaimBound
	// A claim can be bound, a bound claim can be expanded, and a class can be set later.
	if was.VolumeName == "" {
		was.VolumeName = rest.VolumeName
	}
	if was.StorageClassName == nil {
		rest.StorageClassName = nil
	}
	size, oldSize := c.Spec.Resources.Requests[corev1.ResourceStorage], was.Resources.Requests[corev1.ResourceStorage]
	if bound {
		if rest.Resources.Requests != nil {
			rest.Resources.Requests[corev1.ResourceStorage] = oldSize
		}
		rest.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	if changed := podspec.Differences("spec", *was, *rest); len(changed) > 0 {
		k.Forbidden(spec, "spec is immutable after creation except resources.requests and volumeAttributesClassName "+
			"for bound claims\nchanged: "+strings.Join(changed, ", "))
	}
	if size.Cmp(oldSize) < 0 && size.Cmp(old.Status.Capacity[corev1.ResourceStorage]) <= 0 {
		k.Forbidden(spec.Child("resources", "requests", "storage"), "field can not be less than status.capacity")
	}
	k.Immutable(field.NewPath("volumeMode"), c.Spec.VolumeMode, was.VolumeMode)
	class := c.Spec.VolumeAttributesClassName
	if old.Status.CurrentVolumeAttributesClassName == nil ||
		equality.Semantic.DeepEqual(class, was.VolumeAttributesClassName) {
		return
	}
	if ptr.Deref(class, "") == "" {
		k.Forbidden(spec.Child("volumeAttributesClassName"),
			"must name a class while status.currentVolumeAttributesClassName is set")
	}
}

// volumeClaimStatus validates the status of a claim.
func (k *validator) volumeClaimStatus(c, _ *corev1.PersistentVolumeClaim) {
	k.notNegative(status.Child("capacity"), c.Status.Capacity)
	states := status.Child("allocatedResourceStatuses")
	for _, name := range slices.Sorted(maps.Keys(c.Status.AllocatedResourceStatuses)) {
		k.claimResource(states, name)
		switch c.Status.AllocatedResourceStatuses[name] {
		case corev1.PersistentVolumeClaimControllerResizeInProgress,
			corev1.PersistentVolumeClaimControllerResizeInfeasible,
			corev1.PersistentVolumeClaimNodeResizePending,
			corev1.PersistentVolumeClaimNodeResizeInProgress,
			corev1.PersistentVolumeClaimNodeResizeInfeasible:
		default:
			k.Add(field.NotSupported(states, name, []corev1.ClaimResourceStatus{
				corev1.PersistentVolumeClaimControllerResizeInProgress,
				corev1.PersistentVolumeClaimControllerResizeInfeasible,
				corev1.PersistentVolumeClaimNodeResizeInProgress,
				corev1.PersistentVolumeClaimNodeResizeInfeasible,
				corev1.PersistentVolumeClaimNodeResizePending}))
		}
	}
	allocated := status.Child("allocatedResources")
	for _, name := range slices.Sorted(maps.Keys(c.Status.AllocatedResources)) {
		if !k.claimResource(allocated, name) {
			continue
		}
		if q := c.Status.AllocatedResources[name]; q.Sign() < 0 {
			k.Invalid(allocated.Key(string(name)), q.String(), "must be greater than or equal to 0")
		} else if q.MilliValue()%1000 != 0 {
			k.Invalid(allocated.Key(string(name)), q.String(), "must be an integer")
		}
	}
}

// claimResource validates the name of a resource of the status of a claim: storage, or one of another domain. It
// returns false if there was an error.
func (k *validator) claimResource(at *field.Path, name corev1.ResourceName) bool {
	messages := validation.IsQualifiedName(string(name))
	k.InvalidEach(at, name, messages)
	if len(messages) > 0 {
		return false
	}
	native := !strings.Contains(string(name), "/") ||
		strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
	switch {
	case name == corev1.ResourceStorage:
		return true
	case native:
		k.Add(field.NotSupported(at, name, []corev1.ResourceName{corev1.ResourceStorage}))
	default:
		return true
	}
	return false
}

// notNegative validates quantities of any resources.
func (k *validator) notNegative(at *field.Path, list corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; q.Sign() < 0 {
			k.Invalid(at.Key(string(name)), q.String(), "must be a valid resource quantity")
		}
	}
}
