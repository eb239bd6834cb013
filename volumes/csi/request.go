package csi

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"berth/podspec"
)

// request is a volume of a pod.
type request struct {
	pod           *corev1.Pod
	name          string // of the volume in the pod
	claim         string // name of the PersistentVolumeClaim; empty: an inline volume
	specName      string // of the PersistentVolume, or of an inline volume in the pod
	key           volumeKey
	inline        bool
	block         bool // a raw block volume
	readOnly      bool
	fsType        string
	attributes    map[string]string
	accessModes   []corev1.PersistentVolumeAccessMode
	mountOptions  []string
	stageSecret   *corev1.SecretReference
	publishSecret *corev1.SecretReference
	expandSecret  *corev1.SecretReference
}

// SpecName returns the name of a volume of a pod in paths: the name of its PersistentVolume, or its own
// name if it is an inline volume.
func SpecName(vol *corev1.Volume, pv *corev1.PersistentVolume) string {
	if pv != nil {
		return pv.Name
	}
	return vol.Name
}

// newRequest returns the request for a volume of a pod. pv is nil for an inline volume.
func newRequest(pod *corev1.Pod, vol *corev1.Volume, pv *corev1.PersistentVolume) (request, error) {
	r := request{pod: pod, name: vol.Name, claim: podspec.ClaimName(pod, vol), specName: SpecName(vol, pv)}
	switch {
	case pv != nil && pv.Spec.CSI != nil:
		src := pv.Spec.CSI
		r.key = volumeKey{src.Driver, src.VolumeHandle}
		r.readOnly = vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly
		r.fsType, r.attributes = src.FSType, src.VolumeAttributes
		r.accessModes, r.mountOptions = pv.Spec.AccessModes, pv.Spec.MountOptions
		r.stageSecret, r.publishSecret = src.NodeStageSecretRef, src.NodePublishSecretRef
		r.expandSecret, r.block = src.NodeExpandSecretRef, isBlockVolume(pv)
	case pv == nil && vol.CSI != nil:
		src := vol.CSI
		r.inline, r.key = true, volumeKey{src.Driver, inlineHandle(pod.UID, vol.Name)}
		r.readOnly = src.ReadOnly != nil && *src.ReadOnly
		if src.FSType != nil {
			r.fsType = *src.FSType
		}
		r.attributes = src.VolumeAttributes
		if s := src.NodePublishSecretRef; s != nil {
			r.publishSecret = &corev1.SecretReference{Namespace: pod.Namespace, Name: s.Name}
		}
	default:
		return r, errors.New("volume source not found in volume.Spec")
	}
	if r.key.driver == "" || r.key.handle == "" || strings.Contains(r.key.driver, "/") {
		return r, errors.New("driver name or volume handle is empty or invalid")
	}
	if r.block && (r.specName == stagingDirName || r.specName == publishDirName) { // directories beside those of volumes
		return r, fmt.Errorf("a raw block volume cannot have the name %s", r.specName)
	}
	return r, nil
}

func (r request) lifecycleMode() storagev1.VolumeLifecycleMode {
	if r.inline {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// accessMode is the access mode of the calls: the first one of the PersistentVolume.
func (r request) accessMode() corev1.PersistentVolumeAccessMode {
	if len(r.accessModes) == 0 {
		return corev1.ReadWriteOnce
	}
	return r.accessModes[0]
}

// onePod reports whether only one pod may use the volume.
func (r request) onePod() bool {
	return len(r.accessModes) == 1 && r.accessModes[0] == corev1.ReadWriteOncePod
}

func (r request) fsGroup() *int64 {
	if r.pod.Spec.SecurityContext == nil {
		return nil
	}
	return r.pod.Spec.SecurityContext.FSGroup
}

// data returns the content of vol_data.json of the pod's volume.
func (r request) data(node string) volumeData {
	return volumeData{
		Driver: r.key.driver, Handle: r.key.handle, NodeName: node, SpecName: r.specName,
		LifecycleMode: string(r.lifecycleMode()), AttachmentID: attachmentName(r.key, node),
	}
}

// driverSpec is the CSIDriver object of a driver. Nil: there is none.
type driverSpec = storagev1.CSIDriverSpec

// attachRequired reports whether a controller attaches the volume.
func (r request) attachRequired(spec *driverSpec) bool {
	return !r.inline && requiresAttach(spec)
}

func requiresAttach(spec *driverSpec) bool {
	return spec == nil || spec.AttachRequired == nil || *spec.AttachRequired
}

// checkLifecycle returns an error if the driver does not support volumes of this kind.
func (r request) checkLifecycle(spec *driverSpec) error {
	mode := r.lifecycleMode()
	switch {
	case spec == nil && !r.inline:
		return nil
	case spec == nil:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, r.key.driver)
	case slices.Contains(spec.VolumeLifecycleModes, mode):
		return nil
	}
	return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, r.key.driver,
		spec.VolumeLifecycleModes)
}

// appliesFSGroup reports whether the node changes the group of the files, instead of the driver.
func (r request) appliesFSGroup(spec *driverSpec, caps capabilities) bool {
	if r.block || r.fsGroup() == nil || r.readOnly || caps.has(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return false
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if spec != nil && spec.FSGroupPolicy != nil && *spec.FSGroupPolicy != "" {
		policy = *spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	once := r.inline || slices.ContainsFunc(r.accessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
	})
	return r.fsType != "" && once
}

// podInfo are the attributes of a driver with podInfoOnMount.
func (r request) podInfo() map[string]string {
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            r.pod.Name,
		"csi.storage.k8s.io/pod.namespace":       r.pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(r.pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": r.pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(r.inline),
	}
}

// tokensAttribute is the attribute or secret with service account tokens.
const tokensAttribute = "csi.storage.k8s.io/serviceAccount.tokens"

// inputs are what a call needs besides the request.
type inputs struct {
	spec           *driverSpec
	caps           capabilities
	publishContext map[string]string
	secrets        map[string]string
	tokens         string // JSON; empty: the driver requests none
}

// stage returns the request of NodeStageVolume.
func (r request) stage(in inputs, target string) *csipb.NodeStageVolumeRequest {
	return &csipb.NodeStageVolumeRequest{
		VolumeId: r.key.handle, PublishContext: in.publishContext, StagingTargetPath: target,
		VolumeCapability: r.capability(in.caps), Secrets: in.secrets, VolumeContext: r.attributes,
	}
}

// publish returns the request of NodePublishVolume. staging is empty if the volume is not staged.
func (r request) publish(in inputs, staging, target string) *csipb.NodePublishVolumeRequest {
	attributes, secrets := maps.Clone(r.attributes), maps.Clone(in.secrets)
	add := func(to map[string]string, more map[string]string) map[string]string {
		if to == nil {
			to = map[string]string{}
		}
		maps.Copy(to, more)
		return to
	}
	if in.spec != nil && in.spec.PodInfoOnMount != nil && *in.spec.PodInfoOnMount {
		attributes = add(attributes, r.podInfo())
	}
	if tokens := map[string]string{tokensAttribute: in.tokens}; in.tokens != "" {
		if s := in.spec.ServiceAccountTokenInSecrets; s != nil && *s {
			secrets = add(secrets, tokens)
		} else {
			attributes = add(attributes, tokens)
		}
	}
	return &csipb.NodePublishVolumeRequest{
		VolumeId: r.key.handle, PublishContext: in.publishContext, StagingTargetPath: staging, TargetPath: target,
		VolumeCapability: r.capability(in.caps), Readonly: r.readOnly, Secrets: secrets, VolumeContext: attributes,
	}
}

// expand returns the request of NodeExpandVolume. staging is empty if the volume is not staged.
func (r request) expand(in inputs, staging, target string, bytes int64) *csipb.NodeExpandVolumeRequest {
	return &csipb.NodeExpandVolumeRequest{
		VolumeId: r.key.handle, VolumePath: target, StagingTargetPath: staging, Secrets: in.secrets,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: bytes}, VolumeCapability: r.capability(in.caps),
	}
}

// capability is the volume capability of the calls.
func (r request) capability(caps capabilities) *csipb.VolumeCapability {
	mode := &csipb.VolumeCapability_AccessMode{Mode: csiAccessMode(r.accessMode(), caps)}
	if r.block {
		return &csipb.VolumeCapability{AccessMode: mode,
			AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}}
	}
	mount := &csipb.VolumeCapability_MountVolume{FsType: r.fsType, MountFlags: r.mountOptions}
	if gid := r.fsGroup(); gid != nil && caps.has(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		mount.VolumeMountGroup = strconv.FormatInt(*gid, 10)
	}
	return &csipb.VolumeCapability{
		AccessMode: mode, AccessType: &csipb.VolumeCapability_Mount{Mount: mount},
	}
}

// csiAccessMode is the CSI access mode for one of Kubernetes. ReadWriteOnce allows several pods of a
// node, which only drivers with the capability distinguish from one pod.
func csiAccessMode(m corev1.PersistentVolumeAccessMode, caps capabilities) csipb.VolumeCapability_AccessMode_Mode {
	distinguishes := caps.has(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	switch m {
	case corev1.ReadWriteOnce:
		if distinguishes {
			return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case corev1.ReadWriteOncePod:
		if distinguishes {
			return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case corev1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case corev1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_UNKNOWN
}

// capabilities are the capabilities of the node service of a driver.
type capabilities map[csipb.NodeServiceCapability_RPC_Type]bool

func (c capabilities) has(t csipb.NodeServiceCapability_RPC_Type) bool { return c[t] }

func (c capabilities) stages() bool { return c[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] }
